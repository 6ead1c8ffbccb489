import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Member of the recipes of the crate {@code bus}, for the test {@code cargo xtask chaos-recipes}: a candidate for a leadership, or a
 * member of a shared job. README.md describes the commands, and xtask/src/chaos/recipes/board.rs the lines for the witness.
 *
 * The member sends the record of a term to each of its partitions, and then commits. It works from the first accepted commit until
 * the session could end: the start of the last accepted commit, plus the session timeout, minus a margin.
 */
public final class KafkaRecipes {
    /** Number of ids of the shared job; -1 for a candidate. */
    private final int ids;
    private final String topic;
    private final String name;
    private final OutputStream witness;
    private final long sessionNanos;
    private final KafkaConsumer<String, String> consumer;
    private final KafkaProducer<String, String> producer;
    private final Admin admin;
    /** Partitions that the group has assigned to this member. Only the main thread uses this set. */
    private final TreeSet<Integer> owned = new TreeSet<>();
    private volatile boolean stopping;

    // The lock of this object guards the fields below.
    /** Terms of the claimed partitions. Empty while the member does not work. */
    private TreeMap<Integer, Long> terms = new TreeMap<>();
    /** Number of partitions of the topic. */
    private int count;
    /** Time at which the claims end, by System.nanoTime. */
    private long until;

    public static void main(String[] arguments) throws Exception {
        var member = new KafkaRecipes(arguments);
        start("input", member::awaitEndOfInput);
        start("claims", member::claimRepeatedly);
        member.run();
    }

    private static void start(String name, Runnable work) {
        var thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }

    private KafkaRecipes(String[] arguments) throws Exception {
        String servers = arguments[1];
        topic = arguments[2];
        name = arguments[3];
        String[] address = arguments[4].split(":");
        var socket = new Socket(address[0], Integer.parseInt(address[1]));
        socket.setTcpNoDelay(true);
        witness = socket.getOutputStream();
        int session = Integer.parseInt(arguments[5]);
        sessionNanos = session * 1_000_000L;
        ids = arguments[0].equals("share") ? Integer.parseInt(arguments[6]) : -1;
        var settings = new Properties();
        settings.put("bootstrap.servers", servers);
        // The brokers sort members by this name and a random number. With the same name, no language always comes first.
        settings.put("client.id", "reveille");
        settings.put("reconnect.backoff.max.ms", "1000");
        settings.put("metadata.max.age.ms", "5000");
        var producing = new Properties();
        producing.putAll(settings);
        producing.put("linger.ms", "0");
        producing.put("request.timeout.ms", String.valueOf(session / 2));
        producing.put("delivery.timeout.ms", String.valueOf(session));
        producing.put("max.block.ms", String.valueOf(session));
        producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer());
        admin = Admin.create(settings);
        settings.put("group.id", topic);
        settings.put("group.protocol", "classic");
        settings.put("session.timeout.ms", String.valueOf(session));
        settings.put("heartbeat.interval.ms", String.valueOf(session / 6));
        settings.put("enable.auto.commit", "false");
        settings.put("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
        consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private void awaitEndOfInput() {
        try (var input = new BufferedReader(new InputStreamReader(System.in))) {
            while (input.readLine() != null) {
                // A member in Java needs no command: it lists its ids at once.
            }
        } catch (java.io.IOException error) {
            System.err.println(error);
        }
        stopping = true;
    }

    private void run() throws Exception {
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                if (partitions.isEmpty()) {
                    return;
                }
                System.err.println(System.nanoTime() + " " + name + " assigned " + partitions);
                end();
                consumer.pause(partitions);
                partitions.forEach(partition -> owned.add(partition.partition()));
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                System.err.println(System.nanoTime() + " " + name + " revoked " + partitions);
                end();
                partitions.forEach(partition -> owned.remove(partition.partition()));
            }

            @Override
            public void onPartitionsLost(Collection<TopicPartition> partitions) {
                System.err.println(System.nanoTime() + " " + name + " lost " + partitions);
                end();
                owned.clear();
            }
        });
        long proved = 0;
        long counted = 0;
        while (!stopping) {
            consumer.poll(Duration.ofMillis(50));
            if (owned.isEmpty()) {
                continue;
            }
            try {
                long now = System.nanoTime();
                var claimed = claimed();
                if (claimed.isEmpty()) {
                    proved = claim();
                    counted = proved;
                } else if (now - proved >= sessionNanos / 6) {
                    proved = prove(claimed);
                    extend(claimed, proved);
                } else if (ids >= 0 && now - counted >= 5_000_000_000L) {
                    counted = now;
                    checkCount();
                }
            } catch (KafkaException | ExecutionException error) {
                // The group is changing, or the broker is away. The member tries again after the next poll.
                System.err.println(error);
            }
        }
        end();
        consumer.close();
    }

    /** Claims all partitions, and begins the work. Returns the time before the accepted commit. */
    private long claim() throws Exception {
        var claimed = new TreeMap<Integer, Long>();
        for (int partition : owned) {
            var sent = producer.send(new ProducerRecord<>(topic, partition, "term", name));
            claimed.put(partition, sent.get().offset());
        }
        long proved = prove(claimed);
        begin(claimed, partitions(), proved);
        if (ids >= 0) {
            start("listing", () -> list(claimed));
        }
        return proved;
    }

    /** Proves the membership by a commit. Returns the time before the accepted commit. */
    private long prove(Map<Integer, Long> claimed) {
        var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
        claimed.forEach((partition, term) ->
            offsets.put(new TopicPartition(topic, partition), new OffsetAndMetadata(term + 1)));
        long sent = System.nanoTime();
        consumer.commitSync(offsets, Duration.ofNanos(sessionNanos));
        return sent;
    }

    private int partitions() throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
    }

    /** Ends the work if the topic has grown. The next claim uses the new number of partitions. */
    private void checkCount() throws Exception {
        int now = partitions();
        synchronized (this) {
            if (now != count) {
                end();
            }
        }
    }

    private synchronized TreeMap<Integer, Long> claimed() {
        return terms;
    }

    private synchronized void begin(TreeMap<Integer, Long> claimed, int partitions, long proved) {
        terms = claimed;
        count = partitions;
        until = proved + sessionNanos - sessionNanos / 10;
    }

    private synchronized void extend(TreeMap<Integer, Long> claimed, long proved) {
        // The claims may have ended during the commit.
        if (terms == claimed) {
            until = proved + sessionNanos - sessionNanos / 10;
        }
    }

    private synchronized void end() {
        long at = System.nanoTime();
        report(terms, "end", partition -> String.valueOf(at));
        terms = new TreeMap<>();
    }

    private void claimRepeatedly() {
        while (true) {
            synchronized (this) {
                long at = System.nanoTime();
                if (at < until) {
                    report(terms, "claim", partition -> at + " " + until);
                } else if (!terms.isEmpty()) {
                    end();
                }
            }
            try {
                Thread.sleep(ids < 0 ? 10 : 20);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    /** Lists the ids of the claimed partitions, and reports them. */
    private void list(TreeMap<Integer, Long> claimed) {
        int partitions;
        synchronized (this) {
            partitions = count;
        }
        var entries = new HashMap<String, Long>();
        var sets = new HashMap<Integer, long[]>();
        for (int number = 0; number < ids; number++) {
            String id = (number % 10 == 0 ? "gr\u00f6\u00dfe-" : "item-") + number;
            int partition = Math.floorMod(id.hashCode(), partitions);
            Long term = claimed.get(partition);
            if (term != null) {
                entries.put(id, term);
                long[] set = sets.computeIfAbsent(partition, one -> new long[2]);
                set[0] += 1;
                set[1] += mixed(number);
            }
        }
        synchronized (this) {
            if (terms == claimed) {
                report(terms, "set", partition -> {
                    long[] set = sets.getOrDefault(partition, new long[2]);
                    return set[0] + " " + Long.toUnsignedString(set[1]);
                });
            }
        }
    }

    /** Output function of SplitMix64 (Steele, Lea, Flood 2014). */
    private static long mixed(long number) {
        long mixed = number + 0x9e3779b97f4a7c15L;
        mixed = (mixed ^ mixed >>> 30) * 0xbf58476d1ce4e5b9L;
        mixed = (mixed ^ mixed >>> 27) * 0x94d049bb133111ebL;
        return mixed ^ mixed >>> 31;
    }

    /** Writes a line for each partition. The caller holds the lock. */
    private void report(Map<Integer, Long> of, String fact, java.util.function.IntFunction<String> rest) {
        var lines = new ArrayList<String>();
        of.forEach((partition, term) -> {
            String key = ids < 0 ? "leader" : count + "/" + partition;
            lines.add(fact + " " + key + " " + name + " " + term + " " + rest.apply(partition) + "\n");
        });
        try {
            witness.write(String.join("", lines).getBytes(StandardCharsets.UTF_8));
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }
}
