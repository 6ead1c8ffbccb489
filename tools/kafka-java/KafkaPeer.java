import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.StreamSupport;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Utils;

/** Producer and consumer of Kafka's Java client. README.md describes the commands. */
public final class KafkaPeer {
    private static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "partitions" -> partitions(Integer.parseInt(arguments[1]));
            case "produce" -> produce(arguments[1], arguments[2], arguments[3]);
            case "consume" -> consume(arguments[1], arguments[2], Integer.parseInt(arguments[3]));
            case "join" -> join(arguments[1], arguments[2], arguments[3]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static void partitions(int count) throws Exception {
        var output = new StringBuilder();
        for (String line = INPUT.readLine(); line != null; line = INPUT.readLine()) {
            output.append(Utils.toPositive(Utils.murmur2(bytes(line))) % count).append('\n');
        }
        System.out.print(output);
    }

    private static void produce(String servers, String topic, String codec) throws Exception {
        var settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("compression.type", codec);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String line = INPUT.readLine(); line != null; line = INPUT.readLine()) {
                String[] fields = line.split(" ", -1);
                List<Header> list = fields[2].isEmpty()
                    ? List.of()
                    : List.of(fields[2].split(",")).stream().map(KafkaPeer::header).collect(Collectors.toList());
                producer.send(new ProducerRecord<>(topic, null, null, bytes(fields[0]), bytes(fields[1]), list)).get();
            }
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String servers, String group) {
        var settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("session.timeout.ms", "3000");
        settings.put("heartbeat.interval.ms", "500");
        settings.put("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
        settings.put("group.id", group);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void consume(String servers, String topic, int count) {
        try (var consumer = consumer(servers, "java-" + topic)) {
            consumer.subscribe(List.of(topic));
            for (int seen = 0; seen < count;) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    String headers = StreamSupport.stream(record.headers().spliterator(), false)
                        .map(header -> text(header.key().getBytes()) + ":" + text(header.value()))
                        .collect(Collectors.joining(","));
                    System.out.println(text(record.key()) + " " + text(record.value()) + " " + headers);
                    seen += 1;
                }
            }
        }
    }

    private static void join(String servers, String topic, String group) throws Exception {
        var owned = new TreeSet<Integer>();
        try (var consumer = consumer(servers, group)) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    partitions.forEach(partition -> owned.add(partition.partition()));
                    System.out.println("owns " + owned.size());
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    partitions.forEach(partition -> owned.remove(partition.partition()));
                    System.out.println("owns " + owned.size());
                }
            });
            while (!INPUT.ready()) {
                consumer.poll(Duration.ofMillis(100));
            }
        }
    }

    private static Header header(String text) {
        String[] parts = text.split(":", -1);
        return new RecordHeader(new String(bytes(parts[0])), bytes(parts[1]));
    }

    /** Decodes bytes; {@code -} stands for a missing value. */
    private static byte[] bytes(String text) {
        return text.equals("-") ? null : HexFormat.of().parseHex(text);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "-" : HexFormat.of().formatHex(bytes);
    }
}
