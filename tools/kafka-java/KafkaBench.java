import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Contestants in Java of the benchmark {@code reveille bench consume}. README.md describes the arguments and output. */
public final class KafkaBench {
    private static final long SLOW_MILLIS = 1;

    private final String part;
    private final int records;
    private final int warmUp;
    private final AtomicInteger started = new AtomicInteger();
    private final AtomicInteger handled = new AtomicInteger();
    private final AtomicLong handlerNanos = new AtomicLong();
    /** Latency in microseconds, by the number of the record. */
    private final int[] latencies;
    private final CountDownLatch over = new CountDownLatch(1);
    private volatile long began;
    private volatile long took;

    private KafkaBench(String part, int records, int warmUp) {
        this.part = part;
        this.records = records;
        this.warmUp = warmUp;
        this.latencies = new int[part.equals("latency") ? records : 0];
    }

    public static void main(String[] arguments) throws Exception {
        var bench = new KafkaBench(arguments[4], Integer.parseInt(arguments[5]), Integer.parseInt(arguments[6]));
        var consumer = consumer(arguments[1], arguments[3]);
        switch (arguments[0]) {
            case "java" -> bench.consume(consumer, arguments[2]);
            case "parallel" -> bench.consumeInParallel(consumer, arguments[2], Integer.parseInt(arguments[7]));
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String servers, String group) {
        var settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private void consume(KafkaConsumer<byte[], byte[]> consumer, String topic) throws Exception {
        try (consumer) {
            consumer.subscribe(List.of(topic));
            while (over.getCount() > 0) {
                var batch = consumer.poll(Duration.ofMillis(100));
                for (var record : batch) {
                    handle(record);
                }
                if (!batch.isEmpty()) {
                    consumer.commitSync();
                }
            }
            report();
        }
    }

    private void consumeInParallel(KafkaConsumer<byte[], byte[]> consumer, String topic, int concurrency)
            throws Exception {
        var options = ParallelConsumerOptions.<byte[], byte[]>builder()
            .consumer(consumer)
            .ordering(ParallelConsumerOptions.ProcessingOrder.KEY)
            .maxConcurrency(concurrency)
            .build();
        try (var processor = ParallelStreamProcessor.createEosStreamProcessor(options)) {
            processor.subscribe(List.of(topic));
            processor.poll(context -> handle(context.getSingleConsumerRecord()));
            over.await();
            report();
        }
    }

    private void handle(ConsumerRecord<byte[], byte[]> record) {
        switch (part) {
            case "slow" -> {
                long before = System.nanoTime();
                try {
                    Thread.sleep(SLOW_MILLIS);
                } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                }
                handlerNanos.addAndGet(System.nanoTime() - before);
            }
            case "latency" -> {
                var now = Instant.now();
                long micros = now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
                latencies[started.getAndIncrement()] = (int) (micros - record.timestamp() * 1_000);
            }
            default -> { }
        }
        int number = handled.incrementAndGet();
        if (number == 1) {
            System.out.println("first");
        }
        if (number == warmUp) {
            began = System.nanoTime();
            System.out.println("warm");
        }
        if (number == records) {
            took = System.nanoTime() - began;
            over.countDown();
        }
    }

    /** Prints the results, and waits until the benchmark has read the processor time of this process. */
    private void report() throws IOException {
        int[] measured = Arrays.copyOfRange(latencies, Math.min(warmUp, latencies.length), latencies.length);
        Arrays.sort(measured);
        System.out.println("finished " + took / 1_000 + " " + handlerNanos.get() / records / 1_000 + " "
            + quantile(measured, 0.5) + " " + quantile(measured, 0.99));
        while (System.in.read() >= 0) {
            // The benchmark sends nothing. It closes the input.
        }
    }

    private static int quantile(int[] sorted, double part) {
        return sorted.length == 0 ? 0 : sorted[(int) (part * (sorted.length - 1))];
    }
}
