//! Measures hand-overs from a leader that resigns and from a leader that is killed.

use std::time::Duration;

use anyhow::{Context, ensure};
use coordination::tree::{NodePath, Tree};
use runtime::{Monotonic, TaskSet};
use serde::Serialize;
use tokio::sync::oneshot;

use super::peer::Peer;
use super::{Spread, Trial};

/// Interval between two checks of the number of candidates.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time that a new candidate gets to set its watch.
const WATCH_DELAY: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HandOverKind {
    /// Time from the end of the old leader's task to the start of the new leader's task.
    Graceful,
    /// Time from the kill until the successor reports that it leads, minus the session timeout.
    CrashBeyondTimeout,
}

/// Durations of hand-overs of one kind, in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct HandOvers {
    how: HandOverKind,
    session_timeout_ms: u64,
    ours: Vec<f64>,
    /// Durations of the peer's hand-overs in the same rounds, in milliseconds.
    peer: Vec<f64>,
    /// Times in milliseconds from the removal of the dead leader's node until the successor leads; empty for graceful
    /// hand-overs.
    ours_reacting: Vec<f64>,
    peer_reacting: Vec<f64>,
}

/// Measures graceful hand-overs between two candidates in one process. Each candidate has its own session.
///
/// # Errors
/// Returns an error if a hand-over does not complete.
pub(super) async fn graceful(trial: &Trial<'_>, successors: &mut [Peer]) -> anyhow::Result<HandOvers> {
    let mut results = HandOvers::new(trial, HandOverKind::Graceful);
    let arguments = trial.arguments;
    for round in 0..arguments.warm_up + arguments.rounds {
        for successor in successors.iter_mut() {
            let command = format!("bench-handover {}/graceful-{} 1", trial.root, successor.program.name);
            let response = successor.request(&command).await?;
            let micros: f64 = response
                .parse()
                .with_context(|| format!("the response to `{command}` is not a number of microseconds: {response}"))?;
            if round >= arguments.warm_up {
                results.values_of(successor).0.push(micros / 1_000.0);
            }
        }
    }
    Ok(results)
}

/// Measures hand-overs after a kill. Each round starts a new leader process. One successor process serves all rounds.
/// Each process has one candidate.
///
/// # Errors
/// Returns an error if a hand-over does not complete.
pub(super) async fn crash(trial: &Trial<'_>, successors: &mut [Peer]) -> anyhow::Result<HandOvers> {
    let mut results = HandOvers::new(trial, HandOverKind::CrashBeyondTimeout);
    let warm_up = trial.arguments.warm_up.div_ceil(10);
    for round in 0..warm_up + trial.arguments.rounds {
        for successor in successors.iter_mut() {
            let (took, reacted) = crash_once(trial, successor).await?;
            if round >= warm_up {
                let (taken, reacting) = results.values_of(successor);
                taken.push(millis(took) - millis(trial.session_timeout));
                reacting.push(millis(reacted));
            }
        }
    }
    Ok(results)
}

/// Measures one crash. Returns two durations, which both end when the successor leads. The first duration starts at the
/// kill, and the second starts at the removal of the dead leader's node.
async fn crash_once(trial: &Trial<'_>, successor: &mut Peer) -> anyhow::Result<(Duration, Duration)> {
    let runtime = trial.runtime;
    let group = trial.root.join(&format!("crash-{}", successor.program.name))?;
    let mut leader = Peer::start(runtime, successor.program.clone()).await?;
    leader.request(&format!("lead {group} leader selector")).await?;
    leader.event(&format!("leads {group} leader")).await?;
    let tree = trial.client.session().await?;
    let leading = candidates(trial, &*tree, &group, 1).await?;
    successor.request(&format!("lead {group} successor selector")).await?;
    candidates(trial, &*tree, &group, 2).await?;
    let tasks = TaskSet::new(runtime);
    let removal = removal(trial, &tasks, &group.join(&leading[0])?).await?;
    runtime.sleep(WATCH_DELAY).await;
    if trial.arguments.at_any_moment {
        let nanos = u64::try_from(trial.session_timeout.as_nanos() / 2).unwrap_or(u64::MAX);
        runtime.sleep(Duration::from_nanos(runtime.random() % nanos)).await;
    } else {
        leader.request(&format!("touch {group}")).await?;
    }
    let killed = leader.kill().await?;
    let led = successor.event(&format!("leads {group} successor")).await?;
    let removal = removal.await.context("the watch on the leader's node ended without a notification")?;
    successor.request(&format!("resign {group} successor")).await?;
    tasks.join().await;
    Ok((led.since(killed), led.since(removal)))
}

/// Waits until the node `group` has `count` candidates as children, and returns the names of these children.
async fn candidates(trial: &Trial<'_>, tree: &dyn Tree, group: &NodePath, count: usize) -> anyhow::Result<Vec<String>> {
    loop {
        let names = tree.children(group).await?.names;
        if names.len() == count {
            return Ok(names);
        }
        trial.runtime.sleep(POLL_INTERVAL).await;
    }
}

/// Watches the leader's node. Returns a receiver for the instant at which the bench receives the notification of the
/// node's removal.
async fn removal(trial: &Trial<'_>, tasks: &TaskSet, node: &NodePath) -> anyhow::Result<oneshot::Receiver<Monotonic>> {
    let tree = trial.client.session().await?;
    let (stat, watch) = tree.exists_and_watch(node).await?;
    ensure!(stat.is_some(), "the leader's node {node} does not exist");
    let (sender, removal) = oneshot::channel();
    let runtime = trial.runtime.clone();
    tasks.spawn("watch", async move {
        if watch.await.is_ok() {
            let _closed = sender.send(runtime.monotonic());
        }
    });
    Ok(removal)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

impl HandOvers {
    fn new(trial: &Trial<'_>, how: HandOverKind) -> Self {
        let (ours, peer, ours_reacting, peer_reacting) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let session_timeout_ms = trial.arguments.session_millis;
        HandOvers { how, session_timeout_ms, ours, peer, ours_reacting, peer_reacting }
    }

    /// Returns the two lists for the program of `successor`: the durations of its hand-overs, and the part of each
    /// duration after the removal of the leader's node.
    fn values_of(&mut self, successor: &Peer) -> (&mut Vec<f64>, &mut Vec<f64>) {
        match successor.program.name {
            "reveille" => (&mut self.ours, &mut self.ours_reacting),
            _ => (&mut self.peer, &mut self.peer_reacting),
        }
    }

    /// Returns table rows for Reveille and, if a peer ran, for the peer. The ratio is Reveille's median divided by the
    /// peer's median. The medians of crashes include the session timeout. The medians of the time after the removal of
    /// the leader's node do not include it.
    pub(super) fn cells(&self) -> Vec<[String; 8]> {
        let (title, beyond) = match self.how {
            HandOverKind::Graceful => ("graceful".to_owned(), 0.0),
            #[expect(clippy::cast_precision_loss, reason = "a session timeout is at most a minute")]
            HandOverKind::CrashBeyondTimeout => {
                (format!("crash, beyond {} ms", self.session_timeout_ms), self.session_timeout_ms as f64)
            }
        };
        let mut rows = rows(&title, beyond, &self.ours, &self.peer);
        if self.how == HandOverKind::CrashBeyondTimeout {
            rows.extend(self::rows(
                "crash, after removal of the leader's node",
                0.0,
                &self.ours_reacting,
                &self.peer_reacting,
            ));
        }
        rows
    }

    pub(super) fn note(&self) -> Option<String> {
        let (slower, bound) = (self.slower(), self.slower_bound());
        let how = if self.how == HandOverKind::Graceful { "graceful" } else { "crash" };
        let pairs = self.peer.len();
        (pairs > 0).then(|| {
            format!(
                "{how}: Reveille was slower than the peer in {slower} of {pairs} pairs of hand-overs (bound: {bound})"
            )
        })
    }

    fn slower(&self) -> usize {
        self.ours.iter().zip(&self.peer).filter(|(ours, peer)| ours > peer).count()
    }

    /// Returns the largest acceptable number of pairs in which Reveille is slower: the mean plus two standard
    /// deviations. If two programs are equally fast, each program is slower in about half of the pairs. The number then
    /// exceeds this bound by chance in about one run of forty.
    fn slower_bound(&self) -> usize {
        let pairs = self.peer.len();
        (pairs / 2 + pairs.isqrt()).min(pairs)
    }

    /// # Errors
    /// Returns an error if Reveille is slower than the peer in more than the acceptable number of pairs.
    pub(super) fn judge(&self) -> anyhow::Result<()> {
        let (slower, pairs) = (self.slower(), self.peer.len());
        ensure!(
            slower <= self.slower_bound(),
            "{:?}: Reveille was slower than the peer in {slower} of {pairs} pairs of hand-overs (bound: {})",
            self.how,
            self.slower_bound()
        );
        Ok(())
    }
}

fn rows(title: &str, beyond: f64, ours: &[f64], peer: &[f64]) -> Vec<[String; 8]> {
    let row = |name: &str, values: &[f64], ratio: String| {
        let [count, min, quarter, median, three_quarters, max] = Spread::of(values).cells();
        [format!("{title}: {name}"), count, min, quarter, median, three_quarters, max, ratio]
    };
    if peer.is_empty() {
        return vec![row("Reveille", ours, String::new())];
    }
    let ratio = (Spread::of(ours).median + beyond) / (Spread::of(peer).median + beyond);
    vec![row("Reveille", ours, format!("{ratio:.3}")), row("peer", peer, String::new())]
}

#[cfg(test)]
impl HandOvers {
    pub(super) fn with_values(how: HandOverKind, ours: &[f64], peer: &[f64]) -> Self {
        let (ours, peer) = (ours.to_vec(), peer.to_vec());
        let (ours_reacting, peer_reacting) = (ours.clone(), peer.clone());
        HandOvers { how, session_timeout_ms: 4_000, ours, peer, ours_reacting, peer_reacting }
    }
}
