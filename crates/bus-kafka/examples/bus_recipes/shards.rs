//! Member of a job over many ids. It claims its partitions to the witness every 20 ms, and reports the ids of each partition
//! as a number and a digest.
//!
//! The lines of its input are commands: after `list`, the member lists its ids and keeps an entry in memory for each of
//! them. After `work`, it makes a number of passes. A pass computes the partitions of all ids, and does a fixed piece of
//! work for each id of the member.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::pending;
use std::num::NonZeroU32;
use std::time::Duration;

use bus::shards::{Generation, Shard, ShardHash, ShardOptions, ShardedJob};
use runtime::TaskSet;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::witness::now;
use crate::{Failure, Process};

const PERIOD: Duration = Duration::from_millis(20);
const HASH: ShardHash = ShardHash::JavaString;
/// Number of ids between two points at which another task may run.
const IDS_BETWEEN_YIELDS: u32 = 256;
/// Number of steps of the work for one id. A step takes some nanoseconds.
const STEPS: u32 = 2_000;

/// Last command of the input.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Waiting,
    Listing,
    Working,
}

struct Entry {
    generation: Generation,
    result: u64,
}

/// Number of ids of a partition, and their digest.
#[derive(Default)]
struct Set {
    count: u64,
    digest: u64,
}

/// Runs until the end of the input.
pub(crate) async fn run(process: Process, ids: u32, passes: u32) -> Result<(), Failure> {
    let (stop, tasks) = (CancellationToken::new(), TaskSet::new(&process.runtime));
    let (commands, stage) = watch::channel(Stage::Waiting);
    let stopped = stop.clone();
    tasks.spawn("commands", async move {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            commands.send_replace(if line == "work" { Stage::Working } else { Stage::Listing });
        }
        stopped.cancel();
        // The receivers wait for a command while the job stops.
        pending::<()>().await;
    });
    let options = ShardOptions {
        hash: HASH,
        session_timeout: process.session,
        margin: process.margin(),
        grace: process.grace(),
        ..ShardOptions::new(process.topic.clone(), process.topic.as_str(), &process.name)
    };
    let job = ShardedJob::open(&process.runtime, process.bus.clone(), options).await?;
    let work = async |shard: Shard| {
        let member = Member { process: &process, shard: &shard, terms: terms(&shard), ids };
        let working = async {
            let mut stage = stage.clone();
            reached(&mut stage, Stage::Listing).await;
            let mut entries = member.list().await;
            reached(&mut stage, Stage::Working).await;
            for _ in 0..passes {
                member.pass(&mut entries).await;
            }
            process.witness.write(&format!("done - {} 0\n", process.name));
            pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = shard.closing.cancelled() => {}
            () = member.claim() => {}
            () = working => {}
        }
    };
    job.run(&stop, work).await?;
    Ok(())
}

/// Waits for a command.
async fn reached(stage: &mut watch::Receiver<Stage>, wanted: Stage) {
    // The sender lives as long as the job.
    drop(stage.wait_for(|stage| *stage >= wanted).await);
}

/// Job of a member with some partitions. A drop of this value reports the end of the job.
struct Member<'a> {
    process: &'a Process,
    shard: &'a Shard,
    /// Term of each partition.
    terms: BTreeMap<u32, u64>,
    ids: u32,
}

impl Member<'_> {
    /// Claims the partitions until the claims have ended.
    async fn claim(&self) {
        loop {
            let at = now();
            if !self.shard.is_valid() {
                return;
            }
            self.report("claim", |_| format!("{at} {at}"));
            self.process.runtime.sleep(PERIOD).await;
        }
    }

    /// Lists the ids of the member, and reports them.
    async fn list(&self) -> BTreeMap<Box<str>, Entry> {
        let (mut entries, mut sets) = (BTreeMap::new(), BTreeMap::<u32, Set>::new());
        for number in 0..self.ids {
            let id = id(number);
            if let Some(generation) = self.shard.generation(&id) {
                let set = sets.entry(partition_of(self.shard, &id)).or_default();
                set.count += 1;
                set.digest = set.digest.wrapping_add(mixed(u64::from(number)));
                entries.insert(id.into_boxed_str(), Entry { generation, result: 0 });
            }
            yield_at(number).await;
        }
        self.report("set", |partition| {
            let Set { count, digest } = sets.remove(&partition).unwrap_or_default();
            format!("{count} {digest}")
        });
        entries
    }

    async fn pass(&self, entries: &mut BTreeMap<Box<str>, Entry>) {
        for number in 0..self.ids {
            let id = id(number);
            if let Some(generation) = self.shard.generation(&id) {
                let entry = entries.get_mut(id.as_str()).expect("the member has listed its ids");
                assert_eq!(entry.generation, generation, "a job has one generation of each id");
                entry.result = (0..STEPS).fold(entry.result ^ u64::from(number), |result, _| mixed(result));
            }
            yield_at(number).await;
        }
    }

    /// Writes a line for each partition.
    fn report(&self, fact: &str, mut rest: impl FnMut(u32) -> String) {
        let (mut lines, count) = (String::new(), self.shard.partition_count());
        for (partition, term) in &self.terms {
            let rest = rest(*partition);
            let line = writeln!(lines, "{fact} {count}/{partition} {} {term} {rest}", self.process.name);
            line.expect("a string accepts each text");
        }
        self.process.witness.write(&lines);
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        let at = now();
        self.report("end", |_| at.to_string());
    }
}

/// Returns the term of each partition of the member.
fn terms(shard: &Shard) -> BTreeMap<u32, u64> {
    let term = |partition: u32| {
        let id = (0..).map(id).find(|id| partition_of(shard, id) == partition)?;
        Some((partition, shard.generation(&id)?.term.0))
    };
    shard.partitions().filter_map(term).collect()
}

fn partition_of(shard: &Shard, id: &str) -> u32 {
    HASH.partition(id, NonZeroU32::new(shard.partition_count()).expect("a topic has a partition"))
}

async fn yield_at(number: u32) {
    if number.is_multiple_of(IDS_BETWEEN_YIELDS) {
        tokio::task::yield_now().await;
    }
}

/// Returns the id with a number. Some ids contain characters outside of ASCII.
fn id(number: u32) -> String {
    if number.is_multiple_of(10) { format!("größe-{number}") } else { format!("item-{number}") }
}

/// Output function of `SplitMix64` (Steele, Lea, Flood 2014).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
