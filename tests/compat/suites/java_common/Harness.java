import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What the features share: clients with settings, waiting, and the line that each prints. */
class Harness {
    static final String BOOTSTRAP = System.getenv("COMPAT_BOOTSTRAP");
    static final String PREFIX = System.getenv("COMPAT_PREFIX");
    static final Duration DEADLINE = Duration.ofSeconds(40);
    static final Admin ADMIN = Admin.create(Map.of("bootstrap.servers", BOOTSTRAP));

    interface Feature {
        void run() throws Exception;
    }

    static void check(String name, Feature feature) {
        try {
            feature.run();
            System.out.println("ok " + name);
        } catch (Throwable error) {
            System.out.println("fail " + name + ": " + String.valueOf(error).replace("\n", " "));
            error.printStackTrace(System.out);
        }
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
    }

    static void equal(Object found, Object wanted) {
        if (!found.equals(wanted)) {
            throw new AssertionError(found + " instead of " + wanted);
        }
    }

    static void until(Callable<Boolean> condition, String what) throws Exception {
        long end = System.nanoTime() + DEADLINE.toNanos();
        while (!condition.call()) {
            if (System.nanoTime() > end) {
                throw new AssertionError(what);
            }
            Thread.sleep(50);
        }
    }

    static String topic(String name) {
        return PREFIX + "-" + name;
    }

    static String create(String name, int partitions) throws Exception {
        get(ADMIN.createTopics(List.of(new NewTopic(topic(name), partitions, (short) 1))).all());
        return topic(name);
    }

    static Map<String, Object> settings(Object... pairs) {
        Map<String, Object> made = new HashMap<>(Map.of("bootstrap.servers", BOOTSTRAP));
        for (int n = 0; n < pairs.length; n += 2) {
            made.put((String) pairs[n], pairs[n + 1]);
        }
        return made;
    }

    static KafkaProducer<byte[], byte[]> producer(Object... pairs) {
        return new KafkaProducer<>(settings(pairs), new ByteArraySerializer(), new ByteArraySerializer());
    }

    static void send(List<ProducerRecord<byte[], byte[]>> records, Object... pairs) throws Exception {
        try (var producer = producer(pairs)) {
            var sent = new ArrayList<java.util.concurrent.Future<?>>();
            records.forEach(record -> sent.add(producer.send(record)));
            producer.flush();
            for (var each : sent) {
                each.get();
            }
        }
    }

    static List<ProducerRecord<byte[], byte[]>> numbered(String to, int first, int count, int partitions) {
        return IntStream.range(first, first + count)
            .mapToObj(n -> new ProducerRecord<>(to, n % partitions, bytes("" + n), bytes(("value-" + n).repeat(10))))
            .toList();
    }

    static byte[] bytes(String text) {
        return text.getBytes(java.nio.charset.StandardCharsets.UTF_8);
    }

    static KafkaConsumer<byte[], byte[]> consumer(Object... pairs) {
        Map<String, Object> made = settings("auto.offset.reset", "earliest", "enable.auto.commit", "false");
        made.putAll(settings(pairs));
        return new KafkaConsumer<>(made, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static List<ConsumerRecord<byte[], byte[]>> poll(KafkaConsumer<byte[], byte[]> consumer, int count) {
        var rows = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        long end = System.nanoTime() + DEADLINE.toNanos();
        while (rows.size() < count && System.nanoTime() < end) {
            consumer.poll(Duration.ofMillis(300)).forEach(rows::add);
        }
        equal(rows.size(), count);
        return rows;
    }

    static List<ConsumerRecord<byte[], byte[]>> read(String from, int partitions, int count, Object... pairs) {
        try (var consumer = consumer(pairs)) {
            var places = IntStream.range(0, partitions).mapToObj(n -> new TopicPartition(from, n)).toList();
            consumer.assign(places);
            consumer.seekToBeginning(places);
            return poll(consumer, count);
        }
    }

    static KafkaConsumer<byte[], byte[]> member(String group, String from, Object... pairs) {
        Object[] all = new Object[pairs.length + 2];
        System.arraycopy(pairs, 0, all, 2, pairs.length);
        all[0] = "group.id";
        all[1] = topic(group);
        var made = consumer(all);
        made.subscribe(Set.of(from));
        return made;
    }

    @SafeVarargs
    static List<Integer> held(KafkaConsumer<byte[], byte[]>... members) {
        for (var each : members) {
            each.poll(Duration.ofMillis(100));
        }
        return java.util.Arrays.stream(members).map(each -> each.assignment().size()).toList();
    }
}
