import java.io.BufferedReader;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.io.Writer;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.GZIPOutputStream;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.ByteBufferOutputStream;
import org.apache.kafka.common.utils.Time;

/**
 * Records by Kafka's own classes.
 *
 * <pre>
 * write FILE  batches and message sets of every magic and codec, with the rows that Kafka reads
 * read FILE   the rows that Kafka reads from buffers given in hex, one a line, to standard output
 * </pre>
 */
public final class GoldenRecords {
    private static final long TIME = 1_700_000_000_000L;
    private static final Header[] NO_HEADERS = new Header[0];

    private static Writer out;

    public static void main(String[] arguments) throws IOException {
        Path file = Path.of(arguments[1]);
        if (arguments[0].equals("write")) {
            try (Writer writer = new OutputStreamWriter(
                    new GZIPOutputStream(Files.newOutputStream(file)), StandardCharsets.US_ASCII)) {
                out = writer;
                write();
            }
        } else {
            read(file);
        }
    }

    private static void read(Path file) throws IOException {
        PrintWriter printer = new PrintWriter(System.out, false, StandardCharsets.US_ASCII);
        try (BufferedReader lines = Files.newBufferedReader(file)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes(line)));
                records.batches().forEach(RecordBatch::ensureValid);
                printer.println(rows(records));
            }
        }
        printer.flush();
    }

    private static void write() throws IOException {
        for (byte magic = 0; magic <= 2; magic++) {
            for (CompressionType codec : CompressionType.values()) {
                if (codec == CompressionType.ZSTD && magic < 2) {
                    continue;
                }
                Compression compression = Compression.of(codec).build();
                emit("small", small(magic, compression, TimestampType.CREATE_TIME));
                emit("large", large(magic, compression));
                emit("gaps", gaps(magic, compression));
                if (magic > 0) {
                    emit("log append time", small(magic, compression, TimestampType.LOG_APPEND_TIME));
                }
                if (magic == 2) {
                    emit("transactional", transactional(compression));
                    emit("delete horizon", deleteHorizon(compression));
                }
            }
        }
        emit("commit marker", marker(ControlRecordType.COMMIT));
        emit("abort marker", marker(ControlRecordType.ABORT));
        emit("several batches", several());
    }

    private static MemoryRecordsBuilder builder(
            byte magic, Compression compression, TimestampType type, long baseOffset, long appendTime) {
        return MemoryRecords.builder(ByteBuffer.allocate(1 << 17), magic, compression, type, baseOffset,
                appendTime, RecordBatch.NO_PRODUCER_ID, RecordBatch.NO_PRODUCER_EPOCH,
                RecordBatch.NO_SEQUENCE, false, false, RecordBatch.NO_PARTITION_LEADER_EPOCH);
    }

    /** Nulls, empty and odd bytes, headers, timestamps that go back. */
    private static MemoryRecords small(byte magic, Compression compression, TimestampType type) {
        long appendTime = type == TimestampType.LOG_APPEND_TIME ? TIME + 77_777 : RecordBatch.NO_TIMESTAMP;
        MemoryRecordsBuilder builder = builder(
                magic, compression, magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE : type, 40, appendTime);
        append(builder, magic, 40, TIME, "key".getBytes(), "value".getBytes(), NO_HEADERS);
        append(builder, magic, 41, TIME - 12_345, null, "no key".getBytes(), NO_HEADERS);
        append(builder, magic, 42, TIME + 1, "tombstone".getBytes(), null, NO_HEADERS);
        append(builder, magic, 43, TIME + 9_999_999_999L, null, null, NO_HEADERS);
        append(builder, magic, 44, TIME, new byte[0], new byte[0], new Header[] {
            new RecordHeader("", new byte[0]),
            new RecordHeader("null", null),
            new RecordHeader("gr\u00fc\u00dfe \ud83d\ude00", new byte[] {0, 1, -1}),
        });
        append(builder, magic, 45, TIME, new byte[] {0, -128, 127}, new byte[100], new Header[] {
            new RecordHeader("h", new byte[200]),
        });
        return builder.build();
    }

    /** More than one block of every codec's framing; offsets and sizes with varints of each length. */
    private static MemoryRecords large(byte magic, Compression compression) {
        MemoryRecordsBuilder builder = builder(magic, compression,
                magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE : TimestampType.CREATE_TIME, 1L << 40,
                RecordBatch.NO_TIMESTAMP);
        for (int i = 0; i < 300; i++) {
            byte[] value = new byte[i % 10 == 0 ? i * 16 : i];
            for (int j = 0; j < value.length; j++) {
                value[j] = (byte) ('a' + (i + j / 7) % 26);
            }
            append(builder, magic, (1L << 40) + i, TIME + i * 1000L, ("k" + i).getBytes(), value, NO_HEADERS);
        }
        return builder.build();
    }

    /** As compaction leaves them. */
    private static MemoryRecords gaps(byte magic, Compression compression) {
        MemoryRecordsBuilder builder = builder(magic, compression,
                magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE : TimestampType.CREATE_TIME, 1000,
                RecordBatch.NO_TIMESTAMP);
        append(builder, magic, 1003, TIME, "a".getBytes(), "1".getBytes(), NO_HEADERS);
        append(builder, magic, 1004, TIME, "b".getBytes(), "2".getBytes(), NO_HEADERS);
        append(builder, magic, 9000, TIME, "c".getBytes(), "3".getBytes(), NO_HEADERS);
        return builder.build();
    }

    private static MemoryRecords transactional(Compression compression) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1024), (byte) 2, compression,
                TimestampType.CREATE_TIME, 5, RecordBatch.NO_TIMESTAMP, 123_456_789_012L, (short) 7,
                Integer.MAX_VALUE - 1, true, false, 42);
        append(builder, (byte) 2, 5, TIME, null, "one".getBytes(), NO_HEADERS);
        append(builder, (byte) 2, 6, TIME, null, "two".getBytes(), NO_HEADERS);
        append(builder, (byte) 2, 7, TIME, null, "three".getBytes(), NO_HEADERS);
        return builder.build();
    }

    private static MemoryRecords deleteHorizon(Compression compression) {
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(
                new ByteBufferOutputStream(ByteBuffer.allocate(1024)), (byte) 2, compression,
                TimestampType.CREATE_TIME, 5, RecordBatch.NO_TIMESTAMP, RecordBatch.NO_PRODUCER_ID,
                RecordBatch.NO_PRODUCER_EPOCH, RecordBatch.NO_SEQUENCE, false, false, 3, 1024, TIME + 86_400_000L);
        append(builder, (byte) 2, 5, TIME, "gone".getBytes(), null, NO_HEADERS);
        append(builder, (byte) 2, 8, TIME + 5, "stays".getBytes(), "v".getBytes(), NO_HEADERS);
        builder.overrideLastOffset(11);
        return builder.build();
    }

    private static MemoryRecords marker(ControlRecordType type) {
        return MemoryRecords.withEndTransactionMarker(
                77, TIME, 9, 123_456_789_012L, (short) 7, new EndTransactionMarker(type, 31));
    }

    private static MemoryRecords several() {
        List<MemoryRecords> parts = List.of(
                small((byte) 0, Compression.NONE, TimestampType.CREATE_TIME),
                small((byte) 1, Compression.gzip().build(), TimestampType.CREATE_TIME),
                marker(ControlRecordType.ABORT),
                small((byte) 2, Compression.lz4().build(), TimestampType.CREATE_TIME));
        ByteBuffer together = ByteBuffer.allocate(parts.stream().mapToInt(MemoryRecords::sizeInBytes).sum());
        parts.forEach(part -> together.put(part.buffer()));
        together.flip();
        return MemoryRecords.readableRecords(together);
    }

    private static void append(MemoryRecordsBuilder builder, byte magic, long offset, long timestamp,
            byte[] key, byte[] value, Header[] headers) {
        ByteBuffer keyBuffer = key == null ? null : ByteBuffer.wrap(key);
        ByteBuffer valueBuffer = value == null ? null : ByteBuffer.wrap(value);
        builder.appendWithOffset(offset, magic == 0 ? RecordBatch.NO_TIMESTAMP : timestamp, keyBuffer,
                valueBuffer, magic == 2 ? headers : NO_HEADERS);
    }

    private static void emit(String name, MemoryRecords records) throws IOException {
        RecordBatch first = records.batches().iterator().next();
        StringBuilder line = new StringBuilder();
        line.append("{\"name\": \"").append(name).append("\", \"magic\": ").append(first.magic());
        line.append(", \"codec\": \"").append(first.compressionType().name).append("\", \"headers\": [");
        String separator = "";
        for (RecordBatch batch : records.batches()) {
            line.append(separator).append(header(batch));
            separator = ", ";
        }
        // The rows of a large one are the same for every codec: once is enough.
        boolean known = name.equals("large") && first.compressionType() != CompressionType.NONE;
        line.append("], \"bytes\": \"").append(hex(records.buffer())).append("\", \"rows\": ");
        line.append(known ? "null" : rows(records));
        line.append(", \"down\": [");
        separator = "";
        for (byte toMagic = 0; toMagic < first.magic(); toMagic++) {
            if (first.compressionType() != CompressionType.ZSTD && !name.equals("large")) {
                MemoryRecords down = records.downConvert(toMagic, 0, Time.SYSTEM).records();
                line.append(separator).append("{\"bytes\": \"").append(hex(down.buffer()));
                line.append("\", \"rows\": ").append(rows(down)).append("}");
                separator = ", ";
            }
        }
        out.write(line.append("]}\n").toString());
    }

    private static String header(RecordBatch batch) {
        return "[" + batch.baseOffset() + ", " + batch.lastOffset() + ", " + batch.partitionLeaderEpoch() + ", "
                + batch.maxTimestamp() + ", " + batch.timestampType().id + ", " + batch.producerId() + ", "
                + batch.producerEpoch() + ", " + batch.baseSequence() + ", " + batch.lastSequence() + ", "
                + batch.isTransactional() + ", " + batch.isControlBatch() + ", "
                + (batch.deleteHorizonMs().isPresent() ? batch.deleteHorizonMs().getAsLong() : "null") + ", "
                + batch.sizeInBytes() + "]";
    }

    private static String rows(MemoryRecords records) {
        List<String> rows = new ArrayList<>();
        for (RecordBatch batch : records.batches()) {
            for (Record record : batch) {
                List<String> headers = new ArrayList<>();
                for (Header header : record.headers()) {
                    byte[] name = header.key().getBytes(StandardCharsets.UTF_8);
                    headers.add("[" + quoted(ByteBuffer.wrap(name)) + ", "
                            + quoted(header.value() == null ? null : ByteBuffer.wrap(header.value())) + "]");
                }
                rows.add("[" + record.offset() + ", " + record.timestamp() + ", " + batch.timestampType().id + ", "
                        + quoted(record.key()) + ", " + quoted(record.value()) + ", [" + String.join(", ", headers)
                        + "]]");
            }
        }
        return "[" + String.join(", ", rows) + "]";
    }

    private static String quoted(ByteBuffer buffer) {
        return buffer == null ? "null" : "\"" + hex(buffer) + "\"";
    }

    private static String hex(ByteBuffer buffer) {
        StringBuilder digits = new StringBuilder();
        for (int i = buffer.position(); i < buffer.limit(); i++) {
            digits.append(String.format("%02x", buffer.get(i)));
        }
        return digits.toString();
    }

    private static byte[] bytes(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }
}
