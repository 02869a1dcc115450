import java.io.OutputStreamWriter;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.zip.GZIPOutputStream;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataCache;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;

/**
 * Records of __remote_log_metadata by Kafka's RemoteLogMetadataSerde, the metadata partition of each,
 * and what Kafka's RemoteLogMetadataCache says after each step of random histories of a partition.
 */
public final class GoldenRemoteLogMetadata {
    private static final int HISTORIES = 60;
    private static final int STEPS = 30;
    private static final int EPOCHS = 4;

    private static final RemoteLogMetadataSerde SERDE = new RemoteLogMetadataSerde();
    private static final RemoteLogMetadataTopicPartitioner PARTITIONER = new RemoteLogMetadataTopicPartitioner(50);
    private static Writer out;

    public static void main(String[] arguments) throws Exception {
        try (Writer writer = new OutputStreamWriter(
                new GZIPOutputStream(Files.newOutputStream(Path.of(arguments[0]))), StandardCharsets.UTF_8)) {
            out = writer;
            for (int seed = 0; seed < HISTORIES; seed++) {
                history(new Random(seed * 0x9E3779B97F4A7C15L));
            }
        }
    }

    private static void history(Random random) throws Exception {
        Uuid topicId = new Uuid(random.nextLong(), random.nextLong());
        TopicIdPartition partition = new TopicIdPartition(topicId, new TopicPartition("orders-\u00e9", random.nextInt(40)));
        RemoteLogMetadataCache cache = new RemoteLogMetadataCache();
        cache.markInitialized();
        List<RemoteLogSegmentMetadata> known = new ArrayList<>();
        StringBuilder steps = new StringBuilder();
        for (int step = 0; step < STEPS; step++) {
            RemoteLogMetadata event;
            if (known.isEmpty() || random.nextInt(3) == 0) {
                RemoteLogSegmentMetadata added = segment(partition, random, step);
                known.add(added);
                cache.addCopyInProgressSegment(added);
                event = added;
            } else {
                RemoteLogSegmentMetadata one = known.get(random.nextInt(known.size()));
                int state = random.nextInt(8);
                RemoteLogSegmentState target = RemoteLogSegmentState.forId((byte) (state < 6 ? 1 : state - 4));
                Optional<CustomMetadata> custom = random.nextInt(4) == 0
                    ? Optional.of(new CustomMetadata(new byte[] {1, (byte) step})) : Optional.empty();
                RemoteLogSegmentMetadataUpdate update = new RemoteLogSegmentMetadataUpdate(
                    one.remoteLogSegmentId(), 1_700_000_000_000L + step, custom, target, random.nextInt(5));
                if (exists(cache, one)) {
                    cache.updateRemoteLogSegmentMetadata(update);
                }
                event = update;
            }
            steps.append(steps.length() == 0 ? "" : ",\n").append("{\"bytes\":\"").append(hex(SERDE.serialize(event)))
                .append("\",").append(answers(cache)).append('}');
        }
        RemotePartitionDeleteMetadata deletion = new RemotePartitionDeleteMetadata(partition,
            RemotePartitionDeleteState.forId((byte) random.nextInt(3)), 1_800_000_000_000L, random.nextInt(5));
        out.write("{\"topic_id\":\"" + topicId + "\",\"partition\":" + partition.partition()
            + ",\"metadata_partition\":" + PARTITIONER.metadataPartition(partition)
            + ",\"deletion\":\"" + hex(SERDE.serialize(deletion)) + "\",\"deletion_state\":" + deletion.state().id()
            + ",\"steps\":[" + steps.toString().replace("\n", "") + "]}\n");
    }

    private static boolean exists(RemoteLogMetadataCache cache, RemoteLogSegmentMetadata one) {
        Iterator<RemoteLogSegmentMetadata> all = cache.listAllRemoteLogSegments();
        while (all.hasNext()) {
            if (all.next().remoteLogSegmentId().equals(one.remoteLogSegmentId())) {
                return true;
            }
        }
        return false;
    }

    private static RemoteLogSegmentMetadata segment(TopicIdPartition partition, Random random, int step) {
        long start = random.nextInt(8) * 10L;
        long end = start + 9 + random.nextInt(3) * 10L;
        Map<Integer, Long> epochs = new TreeMap<>();
        int epoch = random.nextInt(EPOCHS - 1);
        epochs.put(epoch, start);
        if (random.nextInt(3) == 0) {
            epochs.put(epoch + 1, start + 5);
        }
        return new RemoteLogSegmentMetadata(
            new RemoteLogSegmentId(partition, new Uuid(random.nextLong(), random.nextLong())), start, end,
            1_600_000_000_000L + step, random.nextInt(5), 1_700_000_000_000L + step, 1000 + step, epochs);
    }

    private static String answers(RemoteLogMetadataCache cache) throws Exception {
        StringBuilder highest = new StringBuilder();
        StringBuilder listed = new StringBuilder();
        StringBuilder at = new StringBuilder();
        for (int epoch = 0; epoch < EPOCHS; epoch++) {
            String comma = epoch == 0 ? "" : ",";
            Optional<Long> value = cache.highestOffsetForEpoch(epoch);
            highest.append(comma).append(value.isPresent() ? value.get().toString() : "null");
            listed.append(comma).append(ids(cache.listRemoteLogSegments(epoch)));
            at.append(comma).append('[');
            for (long offset = 0; offset < 110; offset += 3) {
                Optional<RemoteLogSegmentMetadata> found = cache.remoteLogSegmentMetadata(epoch, offset);
                at.append(offset == 0 ? "" : ",").append(found.isPresent() ? id(found.get()) : "null");
            }
            at.append(']');
        }
        return "\"highest\":[" + highest + "],\"listed\":[" + listed + "],\"at\":[" + at + "],\"all\":"
            + ids(cache.listAllRemoteLogSegments());
    }

    private static String ids(Iterator<RemoteLogSegmentMetadata> segments) {
        TreeSet<String> ids = new TreeSet<>();
        segments.forEachRemaining(segment -> ids.add(id(segment)));
        return ids.stream().collect(Collectors.joining(",", "[", "]"));
    }

    private static String id(RemoteLogSegmentMetadata segment) {
        return '"' + segment.remoteLogSegmentId().id().toString() + '"';
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder(bytes.length * 2);
        for (byte one : bytes) {
            text.append(String.format("%02x", one));
        }
        return text.toString();
    }
}
