import java.io.OutputStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.GZIPOutputStream;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.RawTaggedField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.record.BaseRecords;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.SimpleRecord;

/**
 * Writes golden vectors: for each version of each message of kafka-clients 3.9.1 that Ottla defines,
 * the bytes that Kafka's own class encodes and the values that it decodes from them.
 *
 * Arguments: the output file, then the names of the messages ("ProduceRequest", "OffsetCommitKey").
 * One JSON object a line: name, version, variant, bytes in hex, values. Three variants a version:
 * "full" (every field the version carries is set to something other than its default), "sparse"
 * (nullable fields are null, all else is default) and, for flexible versions, "tagged" (full, with
 * tagged fields that no definition knows).
 */
public final class GenerateGolden {
    private static final String[] PACKAGES = {
        "org.apache.kafka.common.message.",
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
        "org.apache.kafka.coordinator.share.generated.",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.",
    };

    private final boolean full;
    private final boolean unknownTags;
    private int counter = 0;

    private GenerateGolden(boolean full, boolean unknownTags) {
        this.full = full;
        this.unknownTags = unknownTags;
    }

    public static void main(String[] arguments) throws Exception {
        StringBuilder lines = new StringBuilder();
        for (int i = 1; i < arguments.length; i++) {
            Class<?> type = classOf(arguments[i]);
            Schema[] schemas = (Schema[]) type.getField("SCHEMAS").get(null);
            short lowest = type.getField("LOWEST_SUPPORTED_VERSION").getShort(null);
            short highest = type.getField("HIGHEST_SUPPORTED_VERSION").getShort(null);
            for (short version = lowest; version <= highest; version++) {
                lines.append(line(arguments[i], type, schemas[version], version, "full"));
                lines.append(line(arguments[i], type, schemas[version], version, "sparse"));
                if (isFlexible(schemas[version])) {
                    lines.append(line(arguments[i], type, schemas[version], version, "tagged"));
                }
            }
        }
        try (OutputStream out = new GZIPOutputStream(Files.newOutputStream(Path.of(arguments[0])))) {
            out.write(lines.toString().getBytes(StandardCharsets.UTF_8));
        }
    }

    private static Class<?> classOf(String name) throws ClassNotFoundException {
        for (String prefix : PACKAGES) {
            for (String suffix : new String[] {"", "Data"}) {
                try {
                    return Class.forName(prefix + name + suffix);
                } catch (ClassNotFoundException e) {
                    // the next one then
                }
            }
        }
        throw new ClassNotFoundException(name);
    }

    private static boolean isFlexible(Schema schema) {
        BoundField[] fields = schema.fields();
        return fields.length > 0 && fields[fields.length - 1].def.type instanceof TaggedFields;
    }

    private static String line(
        String name, Class<?> type, Schema schema, short version, String variant
    ) throws Exception {
        Message message = (Message) type.getConstructor().newInstance();
        boolean full = !variant.equals("sparse");
        new GenerateGolden(full, variant.equals("tagged")).fill(message, schema);
        byte[] bytes = encode(message, version);
        Message again = (Message) type.getConstructor().newInstance();
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        again.read(new ByteBufferAccessor(buffer), version);
        if (buffer.hasRemaining() || !again.equals(message)) {
            throw new IllegalStateException(name + " " + version + " does not come back as it was");
        }
        StringBuilder out = new StringBuilder();
        out.append("{\"name\":\"").append(name).append("\",\"version\":").append(version);
        out.append(",\"variant\":\"").append(variant).append("\",\"bytes\":\"").append(hex(bytes));
        out.append("\",\"values\":");
        write(out, again);
        return out.append("}\n").toString();
    }

    private static byte[] encode(Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return buffer.array();
    }

    // Filling

    private void fill(Message message, Schema schema) throws Exception {
        for (BoundField field : schema.fields()) {
            if (field.def.type instanceof TaggedFields) {
                for (Object one : taggedFields(field.def.type).values()) {
                    org.apache.kafka.common.protocol.types.Field tagged =
                        (org.apache.kafka.common.protocol.types.Field) one;
                    set(message, tagged.name, tagged.type);
                }
                if (unknownTags) {
                    message.unknownTaggedFields().add(new RawTaggedField(100, new byte[] {1, 2}));
                    message.unknownTaggedFields().add(new RawTaggedField(10000, new byte[200]));
                }
            } else {
                set(message, field.def.name, field.def.type);
            }
        }
    }

    private void set(
        Message message, String name, org.apache.kafka.common.protocol.types.Type wireType
    ) throws Exception {
        Field field = fieldNamed(message.getClass(), name);
        Object before = field.get(message);
        Object value;
        if (full) {
            value = value(field.getGenericType(), field.getType(), wireType, before);
        } else if (wireType.isNullable()) {
            value = null;
        } else if (before == null) {
            // The default is null, but this version cannot say so.
            value = field.getType() == String.class ? "" : before;
        } else {
            return;
        }
        setter(message.getClass(), field).invoke(message, value);
    }

    private Object value(
        Type generic,
        Class<?> type,
        org.apache.kafka.common.protocol.types.Type wireType,
        Object before
    ) throws Exception {
        int number = counter++;
        if (type == boolean.class) {
            return !((Boolean) before);
        } else if (type == byte.class || type == Byte.class) {
            return (byte) (40 + number % 50);
        } else if (type == short.class || type == Short.class) {
            return (short) (100 + number);
        } else if (type == int.class || type == Integer.class) {
            return 1000 + number;
        } else if (type == long.class || type == Long.class) {
            return 1_700_000_000_000L + number;
        } else if (type == double.class) {
            return number + 0.5;
        } else if (type == String.class) {
            return number % 3 == 0 ? "text \u00e9\u4e2d " + number : "text-" + number;
        } else if (type == Uuid.class) {
            return new Uuid(0x1122334455667788L + number, 0x99aabbccddeeff00L + number);
        } else if (type == byte[].class) {
            return bytes(number);
        } else if (type == ByteBuffer.class) {
            return ByteBuffer.wrap(bytes(number));
        } else if (BaseRecords.class.isAssignableFrom(type)) {
            return MemoryRecords.withRecords(Compression.NONE,
                new SimpleRecord(1_700_000_000_000L + number, bytes(1), bytes(number)));
        } else if (Collection.class.isAssignableFrom(type)) {
            return collection(generic, type, wireType);
        }
        Message struct = (Message) type.getConstructor().newInstance();
        fill(struct, (Schema) wireType);
        return struct;
    }

    private static byte[] bytes(int number) {
        byte[] bytes = new byte[number % 7 == 6 ? 150 : 5];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) (number * 31 + i * 7);
        }
        return bytes;
    }

    private Object collection(
        Type generic, Class<?> type, org.apache.kafka.common.protocol.types.Type wireType
    ) throws Exception {
        boolean ownClass = type != List.class;
        Type holder = ownClass ? type.getGenericSuperclass() : generic;
        Class<?> element = (Class<?>) ((ParameterizedType) holder).getActualTypeArguments()[0];
        @SuppressWarnings("unchecked")
        Collection<Object> all = ownClass
            ? (Collection<Object>) type.getConstructor().newInstance()
            : new ArrayList<>();
        org.apache.kafka.common.protocol.types.Type inner = wireType.arrayElementType().get();
        for (int i = 0; i < 2; i++) {
            all.add(value(element, element, inner, false));
        }
        return all;
    }

    // Reflection

    private static Map<?, ?> taggedFields(Object type) throws Exception {
        Field fields = TaggedFields.class.getDeclaredField("fields");
        fields.setAccessible(true);
        return (Map<?, ?>) fields.get(type);
    }

    private static Field fieldNamed(Class<?> type, String snakeName) throws NoSuchFieldException {
        for (Field field : type.getDeclaredFields()) {
            if (snakeName(field.getName()).equals(snakeName)) {
                field.setAccessible(true);
                return field;
            }
        }
        throw new NoSuchFieldException(type + " " + snakeName);
    }

    private static Method setter(Class<?> type, Field field) throws NoSuchMethodException {
        String name = field.getName();
        String capital = name.substring(0, 1).toUpperCase(Locale.ROOT) + name.substring(1);
        return type.getMethod("set" + capital, field.getType());
    }

    private static String snakeName(String name) {
        return name.replaceAll("([a-z0-9])([A-Z])", "$1_$2").toLowerCase(Locale.ROOT);
    }

    // Writing values as JSON: bytes in hex, uuids in Kafka's base64

    private static void write(StringBuilder out, Object value) throws Exception {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof String) {
            writeText(out, (String) value);
        } else if (value instanceof Uuid) {
            writeText(out, value.toString());
        } else if (value instanceof byte[]) {
            writeText(out, hex((byte[]) value));
        } else if (value instanceof ByteBuffer) {
            writeText(out, hex(copy((ByteBuffer) value)));
        } else if (value instanceof MemoryRecords) {
            writeText(out, hex(copy(((MemoryRecords) value).buffer())));
        } else if (value instanceof Collection) {
            char separator = '[';
            for (Object item : (Collection<?>) value) {
                out.append(separator);
                write(out, item);
                separator = ',';
            }
            out.append(separator == '[' ? "[]" : "]");
        } else {
            writeStruct(out, (Message) value);
        }
    }

    private static void writeStruct(StringBuilder out, Message message) throws Exception {
        Map<String, Object> values = new TreeMap<>();
        for (Field field : message.getClass().getDeclaredFields()) {
            boolean ours = !Modifier.isStatic(field.getModifiers())
                && !field.getName().startsWith("_")
                && !field.getName().equals("next")
                && !field.getName().equals("prev");
            if (ours) {
                field.setAccessible(true);
                values.put(snakeName(field.getName()), field.get(message));
            }
        }
        char separator = '{';
        for (Map.Entry<String, Object> entry : values.entrySet()) {
            out.append(separator);
            writeText(out, entry.getKey());
            out.append(':');
            write(out, entry.getValue());
            separator = ',';
        }
        if (!message.unknownTaggedFields().isEmpty()) {
            out.append(separator).append("\"unknown_tagged_fields\":{");
            String comma = "";
            for (RawTaggedField one : message.unknownTaggedFields()) {
                out.append(comma).append('"').append(one.tag()).append("\":");
                writeText(out, hex(one.data()));
                comma = ",";
            }
            out.append('}');
            separator = ',';
        }
        out.append(separator == '{' ? "{}" : "}");
    }

    private static void writeText(StringBuilder out, String text) {
        // Nothing here needs escapes: names, hex, base64 and the texts made above.
        out.append('"').append(text).append('"');
    }

    private static byte[] copy(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes;
    }

    private static String hex(byte[] bytes) {
        StringBuilder out = new StringBuilder(bytes.length * 2);
        for (byte one : bytes) {
            out.append(String.format("%02x", one));
        }
        return out.toString();
    }
}
