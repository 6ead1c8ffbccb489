import static java.util.Map.entry;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.api.ACLProvider;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderLatchListener;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListener;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.leader.Participant;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.data.ACL;

/**
 * Process with Curator's recipes. Tests let it share groups with other processes over one ZooKeeper.
 *
 * <p>README.md describes the protocol on stdin and stdout.
 */
public final class Mixed {
    private static final String USAGE = "CONNECT_STRING SESSION_TIMEOUT_MS [USER:PASSWORD]";
    private static final int CONNECT_MAX_S = 30;
    /** Interval between two checks of a condition that has no notification. */
    private static final int POLL_INTERVAL_MS = 5;
    private static final int WATCH_DELAY_MS = 50;

    private final String[] options;
    private final CuratorFramework client;
    /** Step that resigns, by PATH and PARTICIPANT_ID. */
    private final Map<String, Step> candidates = new ConcurrentHashMap<>();
    /** Steps that release what this process has acquired, by kind and PATH, in the order of acquisition. */
    private final Map<String, Deque<Step>> releases = new ConcurrentHashMap<>();
    /** Members by PATH. */
    private final Map<String, Deque<GroupMember>> members = new ConcurrentHashMap<>();
    /** Pairs of candidates by PATH. */
    private final Map<String, Pair> pairs = new ConcurrentHashMap<>();

    private final Map<String, Verb> verbs = Map.ofEntries(
            entry("lead", new Verb("PATH PARTICIPANT_ID selector|latch", a -> lead(a[0], a[1], a[2]))),
            entry("resign", new Verb("PATH PARTICIPANT_ID", a -> resign(a[0], a[1]))),
            entry("participants", new Verb("PATH selector|latch", a -> participants(a[0], a[1]))),
            entry("lock", new Verb("PATH", a -> lock(a[0]))),
            entry("unlock", new Verb("PATH", a -> release("lock", a[0]))),
            entry("read", new Verb("PATH", a -> read(a[0]))),
            entry("unread", new Verb("PATH", a -> release("read", a[0]))),
            entry("write", new Verb("PATH", a -> write(a[0]))),
            entry("unwrite", new Verb("PATH", a -> release("write", a[0]))),
            entry("lease", new Verb("PATH COUNT", a -> lease(a[0], Integer.parseInt(a[1])))),
            entry("unlease", new Verb("PATH", a -> release("lease", a[0]))),
            entry("add", new Verb("PATH N", a -> add(a[0], Long.parseLong(a[1])))),
            entry("get", new Verb("PATH", a -> get(a[0]))),
            entry("barrier-close", new Verb("PATH", a -> barrierClose(a[0]))),
            entry("barrier-open", new Verb("PATH", a -> barrierOpen(a[0]))),
            entry("barrier-wait", new Verb("PATH", a -> barrierWait(a[0]))),
            entry("enter", new Verb("PATH COUNT", a -> enter(a[0], Integer.parseInt(a[1])))),
            entry("leave", new Verb("PATH COUNT", a -> release("barrier of " + Integer.parseInt(a[1]), a[0]))),
            entry("member", new Verb("PATH ID DATA64", a -> member(a[0], a[1], Base64.getDecoder().decode(a[2])))),
            entry("members", new Verb("PATH", a -> members(a[0]))),
            entry("touch", new Verb("PATH", a -> touch(a[0]))),
            entry("bench-handover", new Verb("PATH ROUNDS", a -> benchHandover(a[0], Integer.parseInt(a[1])))));

    /** Arguments of a verb, and its action, which returns values separated by blanks, or null. */
    private record Verb(String usage, Action action) {}

    private interface Action {
        String run(String[] arguments) throws Exception;
    }

    private interface Step {
        void run() throws Exception;
    }

    public static void main(String[] options) throws Exception {
        if (options.length != 2 && options.length != 3) {
            System.err.println("usage: Mixed " + USAGE);
            System.exit(2);
        }
        System.getProperties().putIfAbsent("org.slf4j.simpleLogger.defaultLogLevel", "error");
        Mixed mixed = new Mixed(options);
        print("event connected");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = commands.readLine()) != null; ) {
            String command = line;
            daemon(() -> mixed.serve(command)).start();
        }
        closing = true;
        // A member that is not closed would keep trying to create its node after the client has closed.
        mixed.members.values().forEach(all -> all.forEach(GroupMember::close));
        for (Pair pair : mixed.pairs.values()) {
            pair.close();
        }
        mixed.client.close();
        System.exit(0);
    }

    private Mixed(String[] options) throws InterruptedException {
        this.options = options;
        client = connect();
    }

    private CuratorFramework connect() throws InterruptedException {
        int sessionTimeoutMs = Integer.parseInt(options[1]);
        CuratorFrameworkFactory.Builder builder = CuratorFrameworkFactory.builder()
                .connectString(options[0])
                .sessionTimeoutMs(sessionTimeoutMs)
                .connectionTimeoutMs(sessionTimeoutMs)
                .retryPolicy(new ExponentialBackoffRetry(100, 10, 1_000));
        if (options.length == 3) {
            builder.authorization("digest", options[2].getBytes(StandardCharsets.UTF_8)).aclProvider(CREATOR_ONLY);
        }
        CuratorFramework connected = builder.build();
        connected.start();
        if (!connected.blockUntilConnected(CONNECT_MAX_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("cannot connect to ZooKeeper at " + options[0]);
        }
        return connected;
    }

    private static final ACLProvider CREATOR_ONLY = new ACLProvider() {
        @Override
        public List<ACL> getDefaultAcl() {
            return ZooDefs.Ids.CREATOR_ALL_ACL;
        }

        @Override
        public List<ACL> getAclForPath(String path) {
            return ZooDefs.Ids.CREATOR_ALL_ACL;
        }
    };

    private void serve(String line) {
        String[] words = line.split(" ", -1);
        try {
            Verb verb = words.length > 1 ? verbs.get(words[1]) : null;
            if (verb == null) {
                throw new IllegalArgumentException("unknown verb: " + (words.length > 1 ? words[1] : ""));
            }
            if (words.length - 2 != verb.usage.split(" ").length) {
                throw new IllegalArgumentException("usage: " + words[1] + " " + verb.usage);
            }
            String values = verb.action.run(Arrays.copyOfRange(words, 2, words.length));
            print(words[0] + " ok" + (values == null ? "" : " " + values));
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            String text = cause.getClass().getSimpleName() + ": " + cause.getMessage();
            print(words[0] + " error " + text.replaceAll("\\s+", " "));
        }
    }

    // Leaders.

    private synchronized String lead(String path, String id, String kind) throws Exception {
        String key = path + " " + id;
        if (candidates.containsKey(key)) {
            throw new IllegalStateException(id + " is already a candidate at " + path + " and has not resigned");
        }
        candidates.put(key, isSelector(kind) ? select(path, id) : latch(path, id));
        return null;
    }

    private Step select(String path, String id) {
        CountDownLatch resigned = new CountDownLatch(1);
        AtomicBoolean hasLed = new AtomicBoolean();
        LeaderSelector selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
            @Override
            public void takeLeadership(CuratorFramework own) throws InterruptedException {
                hasLed.set(true);
                print("event leads " + path + " " + id);
                try {
                    resigned.await();
                } finally {
                    print("event lost " + path + " " + id);
                }
            }
        });
        selector.setId(id);
        selector.start();
        return () -> {
            resigned.countDown();
            if (hasLed.get()) {
                // The selector ends by itself; closing it now would interrupt it.
                until(() -> !isCandidate(path, id, "selector"));
            }
            selector.close();
            until(() -> !isCandidate(path, id, "selector"));
        };
    }

    private Step latch(String path, String id) throws Exception {
        LeaderLatch latch = new LeaderLatch(client, path, id, LeaderLatch.CloseMode.NOTIFY_LEADER);
        latch.addListener(new LeaderLatchListener() {
            @Override
            public void isLeader() {
                print("event leads " + path + " " + id);
            }

            @Override
            public void notLeader() {
                print("event lost " + path + " " + id);
            }
        });
        latch.start();
        return () -> {
            latch.close();
            until(() -> !isCandidate(path, id, "latch"));
        };
    }

    private String resign(String path, String id) throws Exception {
        Step resign = candidates.remove(path + " " + id);
        if (resign == null) {
            throw new IllegalStateException(id + " is no candidate at " + path + " in this process");
        }
        resign.run();
        return null;
    }

    private String participants(String path, String kind) throws Exception {
        return ids(path, kind).stream().map(Mixed::encoded).collect(Collectors.joining(" "));
    }

    private boolean isCandidate(String path, String id, String kind) throws Exception {
        return ids(path, kind).contains(id);
    }

    private List<String> ids(String path, String kind) throws Exception {
        Collection<Participant> participants = isSelector(kind)
                ? new LeaderSelector(client, path, OBSERVER).getParticipants()
                : new LeaderLatch(client, path).getParticipants();
        return participants.stream().map(Participant::getId).toList();
    }

    private static boolean isSelector(String kind) {
        return switch (kind) {
            case "selector" -> true;
            case "latch" -> false;
            default -> throw new IllegalArgumentException("neither selector nor latch: " + kind);
        };
    }

    /** Listener of a selector that only lists the participants. */
    private static final LeaderSelectorListener OBSERVER = new LeaderSelectorListenerAdapter() {
        @Override
        public void takeLeadership(CuratorFramework own) {}
    };

    // Locks and leases. Each command has a separate one, so that one process can have many waiting participants.

    private String lock(String path) throws Exception {
        return acquire("lock", path, new InterProcessMutex(client, path));
    }

    private String read(String path) throws Exception {
        return acquire("read", path, new InterProcessReadWriteLock(client, path).readLock());
    }

    private String write(String path) throws Exception {
        return acquire("write", path, new InterProcessReadWriteLock(client, path).writeLock());
    }

    /** Acquires a mutex on a separate thread, because Curator's mutexes belong to a thread and are reentrant in it. */
    private String acquire(String kind, String path, InterProcessMutex mutex) throws Exception {
        ExecutorService thread = Executors.newSingleThreadExecutor(Mixed::daemon);
        on(thread, mutex::acquire);
        return remember(kind, path, () -> {
            on(thread, mutex::release);
            thread.shutdown();
        });
    }

    private String lease(String path, int count) throws Exception {
        Lease lease = new InterProcessSemaphoreV2(client, path, count).acquire();
        return remember("lease", path, lease::close);
    }

    private String remember(String kind, String path, Step release) {
        releases.computeIfAbsent(kind + " " + path, key -> new ConcurrentLinkedDeque<>()).add(release);
        return null;
    }

    private String release(String kind, String path) throws Exception {
        Step release = releases.getOrDefault(kind + " " + path, new ConcurrentLinkedDeque<>()).poll();
        if (release == null) {
            throw new IllegalStateException("this process has no " + kind + " at " + path);
        }
        release.run();
        return null;
    }

    // Numbers.

    private String add(String path, long n) throws Exception {
        return value(new DistributedAtomicLong(client, path, new RetryNTimes(1_000, 1)).add(n));
    }

    private String get(String path) throws Exception {
        return value(new DistributedAtomicLong(client, path, new RetryNTimes(1_000, 1)).get());
    }

    private static String value(AtomicValue<Long> value) {
        if (!value.succeeded()) {
            throw new IllegalStateException("every attempt conflicted with another change");
        }
        return value.postValue().toString();
    }

    // Barriers.

    private String barrierClose(String path) throws Exception {
        new DistributedBarrier(client, path).setBarrier();
        return null;
    }

    private String barrierOpen(String path) throws Exception {
        new DistributedBarrier(client, path).removeBarrier();
        return null;
    }

    private String barrierWait(String path) throws Exception {
        new DistributedBarrier(client, path).waitOnBarrier();
        return null;
    }

    private String enter(String path, int count) throws Exception {
        DistributedDoubleBarrier barrier = new DistributedDoubleBarrier(client, path, count);
        barrier.enter();
        return remember("barrier of " + count, path, barrier::leave);
    }

    // Groups.

    private String member(String path, String id, byte[] data) throws Exception {
        GroupMember member = new GroupMember(client, path, id, data);
        member.start();
        until(() -> client.checkExists().forPath(path + "/" + id) != null);
        members.computeIfAbsent(path, key -> new ConcurrentLinkedDeque<>()).add(member);
        return null;
    }

    private String members(String path) {
        Deque<GroupMember> own = members.get(path);
        if (own == null) {
            throw new IllegalStateException("no member of " + path + " in this process, which could list the others");
        }
        return String.join(" ", new TreeSet<>(own.getFirst().getCurrentMembers().keySet()));
    }

    // Duration of hand-overs of leadership from one client to another.

    /** Candidate with a separate client. It leads repeatedly, each time until it is asked to resign. */
    private final class Candidate extends LeaderSelectorListenerAdapter {
        private final CuratorFramework own = connect();
        private final LeaderSelector selector;
        private final Semaphore resign = new Semaphore(0);
        private final BlockingQueue<Long> ledNanos = new LinkedBlockingQueue<>();
        private volatile long endedNanos;

        Candidate(String path) throws InterruptedException {
            selector = new LeaderSelector(own, path, this);
            selector.autoRequeue();
            selector.start();
        }

        @Override
        public void takeLeadership(CuratorFramework own) throws InterruptedException {
            ledNanos.add(System.nanoTime());
            resign.acquire();
            endedNanos = System.nanoTime();
        }
    }

    /** Two candidates at one PATH: one leads, the other waits. */
    private final class Pair {
        private final String path;
        private Candidate leader;
        private Candidate next;

        Pair(String path) throws InterruptedException {
            this.path = path;
            leader = new Candidate(path);
            leader.ledNanos.take();
            next = new Candidate(path);
        }

        /** Returns the microseconds from the end of one leadership to the start of the next. */
        long handOver() throws Exception {
            until(() -> ids(path, "selector").size() == 2);
            // Wait until the waiting candidate has also set its watch.
            Thread.sleep(WATCH_DELAY_MS);
            leader.resign.release();
            long micros = (next.ledNanos.take() - leader.endedNanos) / 1_000;
            Candidate last = leader;
            leader = next;
            next = last;
            return micros;
        }

        void close() throws Exception {
            next.selector.close();
            leader.selector.close();
            until(() -> ids(path, "selector").isEmpty());
            next.own.close();
            leader.own.close();
        }
    }

    private synchronized String benchHandover(String path, int rounds) throws Exception {
        Pair pair = pairs.get(path);
        if (pair == null) {
            pair = new Pair(path);
            pairs.put(path, pair);
        }
        List<String> micros = new ArrayList<>();
        for (int round = 0; round < rounds; round++) {
            micros.add(String.valueOf(pair.handOver()));
        }
        return String.join(" ", micros);
    }

    private String touch(String path) throws Exception {
        client.checkExists().forPath(path);
        return null;
    }

    // Shared helpers of the verbs.

    private static void on(ExecutorService thread, Step step) throws Exception {
        thread.submit(() -> {
                    step.run();
                    return null;
                })
                .get();
    }

    private static void until(Callable<Boolean> condition) throws Exception {
        while (!condition.call()) {
            Thread.sleep(POLL_INTERVAL_MS);
        }
    }

    private static Thread daemon(Runnable task) {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    }

    private static String encoded(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static volatile boolean closing;

    private static void print(String line) {
        synchronized (OUT) {
            if (!closing) {
                OUT.print(line + "\n");
                OUT.flush();
            }
        }
    }
}
