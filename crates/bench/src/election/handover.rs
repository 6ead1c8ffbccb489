//! From one leader to the next: one that resigns, and one that is killed.

use std::time::Duration;

use anyhow::{Context, ensure};
use coordination::tree::{NodePath, Tree};
use runtime::{Monotonic, TaskSet};
use serde::Serialize;
use tokio::sync::oneshot;

use super::peer::Peer;
use super::{Spread, Trial};

/// Between two looks at who stands.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Until who stands has its watch, too.
const REST: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    /// From the end of one's task to the beginning of the next one's.
    Graceful,
    /// From the kill to the successor's word that it leads, less the session's timeout.
    CrashBeyondTimeout,
}

/// What hand-overs of one kind took.
#[derive(Debug, Serialize)]
pub(super) struct HandOvers {
    how: How,
    session_timeout_ms: u64,
    ours: Vec<f64>,
    /// Of the same rounds.
    peer: Vec<f64>,
    /// Of a crash, the time from when the ensemble had taken the dead leader's node away.
    ours_reacting: Vec<f64>,
    peer_reacting: Vec<f64>,
}

/// Two candidates, each with a session, in one process.
///
/// # Errors
/// If a hand-over does not come about.
pub(super) async fn graceful(trial: &Trial<'_>, successors: &mut [Peer]) -> anyhow::Result<HandOvers> {
    let mut found = HandOvers::new(trial, How::Graceful);
    let arguments = trial.arguments;
    for round in 0..arguments.warm_up + arguments.rounds {
        for successor in successors.iter_mut() {
            let command = format!("bench-handover {}/graceful-{} 1", trial.root, successor.program.name);
            let micros: f64 = successor.ask(&command).await?.parse().context("it tells no microseconds")?;
            if round >= arguments.warm_up {
                found.of(successor).0.push(micros / 1_000.0);
            }
        }
    }
    Ok(found)
}

/// A new process that leads, and one that has waited before for others, each with one candidate.
///
/// # Errors
/// As [`graceful`].
pub(super) async fn crash(trial: &Trial<'_>, successors: &mut [Peer]) -> anyhow::Result<HandOvers> {
    let mut found = HandOvers::new(trial, How::CrashBeyondTimeout);
    let warm_up = trial.arguments.warm_up.div_ceil(10);
    for round in 0..warm_up + trial.arguments.rounds {
        for successor in successors.iter_mut() {
            let (took, reacted) = crash_once(trial, successor).await?;
            if round >= warm_up {
                let (taken, reacting) = found.of(successor);
                taken.push(millis(took) - millis(trial.session_timeout));
                reacting.push(millis(reacted));
            }
        }
    }
    Ok(found)
}

/// From the kill, and from the end of the dead leader's node.
async fn crash_once(trial: &Trial<'_>, successor: &mut Peer) -> anyhow::Result<(Duration, Duration)> {
    let runtime = trial.runtime;
    let group = trial.root.join(&format!("crash-{}", successor.program.name))?;
    let mut leader = Peer::start(runtime, successor.program.clone()).await?;
    leader.ask(&format!("lead {group} leader selector")).await?;
    leader.event(&format!("leads {group} leader")).await?;
    let tree = trial.client.session().await?;
    let leading = standing(trial, &*tree, &group, 1).await?;
    successor.ask(&format!("lead {group} successor selector")).await?;
    standing(trial, &*tree, &group, 2).await?;
    let tasks = TaskSet::new(runtime);
    let gone = gone(trial, &tasks, &group.join(&leading[0])?).await?;
    runtime.sleep(REST).await;
    if trial.arguments.at_any_moment {
        let nanos = u64::try_from(trial.session_timeout.as_nanos() / 2).unwrap_or(u64::MAX);
        runtime.sleep(Duration::from_nanos(runtime.random() % nanos)).await;
    } else {
        leader.ask(&format!("touch {group}")).await?;
    }
    let killed = leader.kill().await?;
    let led = successor.event(&format!("leads {group} successor")).await?;
    let gone = gone.await.context("the leader's node stays")?;
    successor.ask(&format!("resign {group} successor")).await?;
    tasks.join().await;
    Ok((led.since(killed), led.since(gone)))
}

/// The names of those who stand, as soon as there are so many.
async fn standing(trial: &Trial<'_>, tree: &dyn Tree, group: &NodePath, count: usize) -> anyhow::Result<Vec<String>> {
    loop {
        let names = tree.children(group).await?.names;
        if names.len() == count {
            return Ok(names);
        }
        trial.runtime.sleep(LOOK_EVERY).await;
    }
}

/// When the bench is told that a node has gone.
async fn gone(trial: &Trial<'_>, tasks: &TaskSet, node: &NodePath) -> anyhow::Result<oneshot::Receiver<Monotonic>> {
    let tree = trial.client.session().await?;
    let (found, watch) = tree.exists_and_watch(node).await?;
    ensure!(found.is_some(), "the leader's node is not there");
    let (told, gone) = oneshot::channel();
    let runtime = trial.runtime.clone();
    tasks.spawn("watch", async move {
        if watch.await.is_ok() {
            let _nobody = told.send(runtime.monotonic());
        }
    });
    Ok(gone)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

impl HandOvers {
    fn new(trial: &Trial<'_>, how: How) -> Self {
        let (ours, peer, ours_reacting, peer_reacting) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let session_timeout_ms = trial.arguments.session_millis;
        HandOvers { how, session_timeout_ms, ours, peer, ours_reacting, peer_reacting }
    }

    /// What it took, and of that what followed the end of the leader's node.
    fn of(&mut self, successor: &Peer) -> (&mut Vec<f64>, &mut Vec<f64>) {
        match successor.program.name {
            "ours" => (&mut self.ours, &mut self.ours_reacting),
            _ => (&mut self.peer, &mut self.peer_reacting),
        }
    }

    /// A row of ours, and one of the peer's; the ratio is that of the medians, a crash's timeout included.
    pub(super) fn cells(&self) -> Vec<[String; 8]> {
        let (title, beyond) = match self.how {
            How::Graceful => ("graceful".to_owned(), 0.0),
            #[expect(clippy::cast_precision_loss, reason = "it is at most a minute")]
            How::CrashBeyondTimeout => {
                (format!("crash, {} ms and", self.session_timeout_ms), self.session_timeout_ms as f64)
            }
        };
        let mut rows = rows(&title, beyond, &self.ours, &self.peer);
        if self.how == How::CrashBeyondTimeout {
            rows.extend(self::rows("after the dead one's node went", 0.0, &self.ours_reacting, &self.peer_reacting));
        }
        rows
    }

    pub(super) fn note(&self) -> Option<String> {
        let (slower, most) = (self.slower(), self.slower_most());
        let how = if self.how == How::Graceful { "graceful" } else { "crash" };
        let pairs = self.peer.len();
        (pairs > 0).then(|| format!("{how}: ours was slower in {slower} of {pairs} pairs (at most {most} by chance)"))
    }

    fn slower(&self) -> usize {
        self.ours.iter().zip(&self.peer).filter(|(ours, peer)| ours > peer).count()
    }

    /// Of two that are alike each is the slower one in half of the pairs, and in more than this in one run of forty: the mean and two deviations.
    fn slower_most(&self) -> usize {
        let pairs = self.peer.len();
        (pairs / 2 + pairs.isqrt()).min(pairs)
    }

    /// # Errors
    /// If ours is slower than the peer.
    pub(super) fn judge(&self) -> anyhow::Result<()> {
        let (slower, pairs) = (self.slower(), self.peer.len());
        ensure!(slower <= self.slower_most(), "ours was slower in {slower} of {pairs} hand-overs: {:?}", self.how);
        Ok(())
    }
}

fn rows(title: &str, beyond: f64, ours: &[f64], peer: &[f64]) -> Vec<[String; 8]> {
    let row = |name: &str, values: &[f64], ratio: String| {
        let [count, min, quarter, median, three_quarters, max] = Spread::of(values).cells();
        [format!("{title}: {name}"), count, min, quarter, median, three_quarters, max, ratio]
    };
    if peer.is_empty() {
        return vec![row("ours", ours, String::new())];
    }
    let ratio = (Spread::of(ours).median + beyond) / (Spread::of(peer).median + beyond);
    vec![row("ours", ours, format!("{ratio:.3}")), row("the peer", peer, String::new())]
}

#[cfg(test)]
impl HandOvers {
    pub(super) fn found(how: How, ours: &[f64], peer: &[f64]) -> Self {
        let (ours, peer) = (ours.to_vec(), peer.to_vec());
        let (ours_reacting, peer_reacting) = (ours.clone(), peer.clone());
        HandOvers { how, session_timeout_ms: 4_000, ours, peer, ours_reacting, peer_reacting }
    }
}
