import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.X509ExtendedKeyManager;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.AppConfigurationEntry.LoginModuleControlFlag;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.kerberos.KerberosName;
import org.apache.kafka.common.security.kerberos.KerberosShortNamer;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler;
import org.apache.kafka.common.security.ssl.DefaultSslEngineFactory;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Answers one JSON object a line with another: the names that the JDK and Kafka make.
 *
 * <ul>
 *   <li>{"certificate": hex} the name of its subject
 *   <li>{"ssl": {setting: text}} the certificates of the key and of the truststore, in hex with blanks
 *   <li>{"token": text, "jwks": URL, "skew", "subject", "issuer", "audience"} the end of its life and its owner
 *   <li>{"store": "JKS" or "PKCS12", "legacy": boolean, "keys": [[alias, key, certificate in hex]]} a store with
 *       these keys in hex, and the alias that the key manager chooses for RSA, EC and EdDSA
 *   <li>{"bytes": hex} the text that they are in UTF-8
 *   <li>{"rules": text, "name": text} the user of a certificate's name (SslPrincipalMapper)
 *   <li>{"kerberos": [rule], "realm": text, "name": text} the user of a Kerberos principal
 *   <li>{"rules": text} or {"kerberos": [rule], "realm": text} without a name: whether they are valid
 * </ul>
 *
 * An answer has "found", or "error" with the name of the exception or "timeout". A line {"java": version} is the
 * first one.
 */
public class GoldenIdentity {
    private static final ObjectMapper JSON = new ObjectMapper();
    /** Java's matcher has no limit, and some expressions take it longer than a universe lasts. */
    private static final long LIMIT_MS = 500;
    private static final long OTHER_LIMIT_MS = 60_000;
    private static final Map<String, SslPrincipalMapper> MAPPERS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintWriter out = new PrintWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
        ObjectNode first = JSON.createObjectNode();
        out.println(first.put("java", Runtime.version().feature()));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode();
            Thread worker = new Thread(() -> fill(answer, request));
            worker.start();
            worker.join(request.has("rules") ? LIMIT_MS : OTHER_LIMIT_MS);
            if (worker.isAlive()) {
                worker.stop();
                worker.join();
                answer.removeAll();
                answer.put("error", "timeout");
            }
            out.println(answer);
        }
        out.flush();
    }

    private static void fill(ObjectNode answer, JsonNode request) {
        try {
            answer.put("found", answer(request));
        } catch (Throwable error) {
            answer.put("error", error.getClass().getSimpleName());
            if (request.has("ssl")) {
                answer.put("message", String.valueOf(error.getMessage()));
            }
        }
    }

    private static String ownerOf(JsonNode request) throws Exception {
        Map<String, Object> values = new HashMap<>();
        values.put("sasl.oauthbearer.jwks.endpoint.url", request.get("jwks").asText());
        values.put("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000L);
        values.put("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100L);
        values.put("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10_000L);
        values.put("sasl.oauthbearer.clock.skew.seconds", request.get("skew").asInt());
        values.put("sasl.oauthbearer.scope.claim.name", "scope");
        values.put("sasl.oauthbearer.sub.claim.name", request.get("subject").asText());
        if (!request.get("issuer").isNull()) {
            values.put("sasl.oauthbearer.expected.issuer", request.get("issuer").asText());
        }
        List<String> audience = new ArrayList<>();
        request.get("audience").forEach(each -> audience.add(each.asText()));
        values.put("sasl.oauthbearer.expected.audience", audience);
        String module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule";
        AppConfigurationEntry entry =
            new AppConfigurationEntry(module, LoginModuleControlFlag.REQUIRED, Map.of());
        OAuthBearerValidatorCallbackHandler handler = new OAuthBearerValidatorCallbackHandler();
        handler.configure(values, "OAUTHBEARER", List.of(entry));
        OAuthBearerValidatorCallback callback =
            new OAuthBearerValidatorCallback(request.get("token").asText());
        handler.handle(new Callback[] {callback});
        handler.close();
        if (callback.token() == null) {
            throw new IllegalArgumentException(callback.errorStatus());
        }
        return callback.token().lifetimeMs() + " " + callback.token().principalName();
    }

    private static String stores(JsonNode settings) throws Exception {
        Map<String, Object> values = new HashMap<>();
        values.put("ssl.protocol", "TLSv1.3");
        values.put("ssl.keystore.type", "JKS");
        values.put("ssl.truststore.type", "JKS");
        settings.fields().forEachRemaining(each -> {
            String text = each.getValue().asText();
            boolean isPlain = each.getKey().endsWith(".type") || each.getKey().endsWith(".location");
            values.put(each.getKey(), isPlain ? text : new Password(text));
        });
        try (DefaultSslEngineFactory factory = new DefaultSslEngineFactory()) {
            factory.configure(values);
            StringBuilder found = new StringBuilder();
            if (factory.keystore() != null) {
                for (Certificate each : factory.keystore().getCertificateChain("kafka")) {
                    found.append(HexFormat.of().formatHex(each.getEncoded())).append(' ');
                }
            }
            found.append('|');
            if (factory.truststore() != null) {
                int count = factory.truststore().size();
                for (int number = 0; number < count; number++) {
                    Certificate each = factory.truststore().getCertificate("kafka" + number);
                    found.append(' ').append(HexFormat.of().formatHex(each.getEncoded()));
                }
            }
            return found.toString();
        }
    }

    private static String keyStore(JsonNode request) throws Exception {
        System.setProperty("keystore.pkcs12.legacy", "");
        if (!request.get("legacy").asBoolean()) {
            System.clearProperty("keystore.pkcs12.legacy");
        }
        char[] password = "storepass".toCharArray();
        KeyStore store = KeyStore.getInstance(request.get("store").asText());
        store.load(null, null);
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        for (JsonNode each : request.get("keys")) {
            byte[] bytes = HexFormat.of().parseHex(each.get(2).asText());
            Certificate made = factory.generateCertificate(new ByteArrayInputStream(bytes));
            PKCS8EncodedKeySpec spec =
                new PKCS8EncodedKeySpec(HexFormat.of().parseHex(each.get(1).asText()));
            PrivateKey key =
                KeyFactory.getInstance(made.getPublicKey().getAlgorithm()).generatePrivate(spec);
            store.setKeyEntry(each.get(0).asText(), key, password, new Certificate[] {made});
        }
        ByteArrayOutputStream written = new ByteArrayOutputStream();
        store.store(written, password);
        // The order in a file can be another one than that in which the entries were made.
        KeyStore read = KeyStore.getInstance(request.get("store").asText());
        read.load(new ByteArrayInputStream(written.toByteArray()), password);
        KeyManagerFactory managers = KeyManagerFactory.getInstance("SunX509");
        managers.init(read, password);
        X509ExtendedKeyManager manager = (X509ExtendedKeyManager) managers.getKeyManagers()[0];
        StringBuilder found = new StringBuilder(HexFormat.of().formatHex(written.toByteArray()));
        for (String kind : List.of("RSA", "EC", "EdDSA")) {
            String alias = manager.chooseEngineServerAlias(kind, null, null);
            found.append('|').append(alias == null ? "" : alias);
        }
        return found.toString();
    }

    private static String answer(JsonNode request) throws Exception {
        if (request.has("certificate")) {
            byte[] bytes = HexFormat.of().parseHex(request.get("certificate").asText());
            CertificateFactory factory = CertificateFactory.getInstance("X.509");
            X509Certificate made =
                (X509Certificate) factory.generateCertificate(new ByteArrayInputStream(bytes));
            return made.getSubjectX500Principal().getName();
        }
        if (request.has("bytes")) {
            byte[] bytes = HexFormat.of().parseHex(request.get("bytes").asText());
            return new String(bytes, StandardCharsets.UTF_8);
        }
        if (request.has("ssl")) {
            return stores(request.get("ssl"));
        }
        if (request.has("store")) {
            return keyStore(request);
        }
        if (request.has("token")) {
            return ownerOf(request);
        }
        JsonNode name = request.get("name");
        if (request.has("kerberos")) {
            List<String> rules = new ArrayList<>();
            request.get("kerberos").forEach(rule -> rules.add(rule.asText()));
            KerberosShortNamer namer =
                KerberosShortNamer.fromUnparsedRules(request.get("realm").asText(), rules);
            return name == null ? "" : namer.shortName(KerberosName.parse(name.asText()));
        }
        String rules = request.get("rules").asText();
        SslPrincipalMapper mapper = MAPPERS.get(rules);
        if (mapper == null) {
            mapper = SslPrincipalMapper.fromRules(rules);
            MAPPERS.put(rules, mapper);
        }
        return name == null ? "" : mapper.getName(name.asText());
    }
}
