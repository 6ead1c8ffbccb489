import com.standardwebhooks.Webhook;
import com.standardwebhooks.exceptions.WebhookVerificationException;
import com.sun.net.httpserver.Headers;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/**
 * Asks Reveille for a callback in one second, verifies the callback, and drops a duplicate of it.
 *
 * <pre>java -cp 'target/dependency/*' Callback.java [PORT]</pre>
 *
 * REVEILLE_URL names the server, REVEILLE_KEY contains an API key, and REVEILLE_SIGNING_SECRET contains the signing
 * secret of the key's tenant.
 */
public final class Callback {
    private static final Duration WAIT = Duration.ofSeconds(20);
    private static final HttpClient CLIENT = HttpClient.newHttpClient();

    private record Received(Headers headers, String body) {}

    /** Verifies callbacks, drops duplicates, and puts each other callback into a queue. */
    private static final class Inbox {
        private final Webhook webhook;
        // A restart loses these ids. A real service stores the id in its database, in the transaction that does the
        // callback's work. Then a crash can neither lose the work nor repeat it.
        private final Set<String> ids = ConcurrentHashMap.newKeySet();
        private final BlockingQueue<Received> callbacks = new ArrayBlockingQueue<>(16);

        Inbox(String secret) throws Exception {
            webhook = new Webhook(secret);
        }

        /** Returns the status of the response. Reveille repeats the callback later if the status is not 2xx. */
        int receive(Received request) {
            try {
                // The signature covers the raw body. The library also rejects a timestamp that differs from the clock
                // by more than five minutes.
                webhook.verify(request.body(), request.headers());
            } catch (WebhookVerificationException error) {
                System.out.println("rejected a request: " + error.getMessage());
                return 401;
            }
            String id = request.headers().getFirst("webhook-id");
            if (!ids.add(id)) {
                System.out.println("dropped a duplicate of " + id);
                return 204;
            }
            System.out.println("received " + id + ": " + request.body());
            callbacks.add(request);
            return 204;
        }

        void handle(HttpExchange exchange) throws IOException {
            try (exchange) {
                String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
                exchange.sendResponseHeaders(receive(new Received(exchange.getRequestHeaders(), body)), -1);
            }
        }
    }

    /** Creates the schedule, and returns its path. A second request with the same key creates no second schedule. */
    private static String create(String schedule) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(environment("REVEILLE_URL") + "/v1/schedules"))
                .timeout(WAIT)
                .header("Authorization", "Bearer " + environment("REVEILLE_KEY"))
                .header("Content-Type", "application/json")
                .header("Idempotency-Key", UUID.randomUUID().toString())
                .POST(HttpRequest.BodyPublishers.ofString(schedule))
                .build();
        // A client that loses a response repeats the request with the same key and the same body. This program always
        // repeats it, to show that both responses are the same.
        HttpResponse<String> first = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
        HttpResponse<String> second = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
        check(first.statusCode() == 201, "the server creates the schedule: " + first.body());
        check(second.statusCode() == 201, "the server recognizes the key: " + second.body());
        check(first.body().equals(second.body()), "the repeated request gets the first response");
        return first.headers().firstValue("Location").orElseThrow();
    }

    /** Sends the callback to the receiver again, with this body. Returns the status. */
    private static int deliver(URI target, Received callback, String body) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(target)
                .timeout(WAIT)
                .POST(HttpRequest.BodyPublishers.ofString(body));
        for (String name : List.of("webhook-id", "webhook-timestamp", "webhook-signature")) {
            request.header(name, callback.headers().getFirst(name));
        }
        return CLIENT.send(request.build(), HttpResponse.BodyHandlers.discarding()).statusCode();
    }

    private static String environment(String name) {
        String value = System.getenv(name);
        check(value != null, "the environment contains " + name);
        return value;
    }

    private static void check(boolean holds, String promise) {
        if (!holds) {
            throw new IllegalStateException("failed: " + promise);
        }
    }

    private static void run(Inbox inbox, URI target) throws Exception {
        String payload = "{\"order\":\"" + UUID.randomUUID() + "\"}";
        String path = create("""
                {"at": "%s", "target": {"http": {"url": "%s"}}, "payload": %s}
                """.formatted(Instant.now().plusSeconds(1), target, payload));
        System.out.println("created " + path);

        Received callback = inbox.callbacks.poll(WAIT.toSeconds(), TimeUnit.SECONDS);
        check(callback != null, "a verified callback arrives within " + WAIT.toSeconds() + " s");
        check(callback.body().equals(payload), "the callback has the payload of the schedule");
        check(path.endsWith("/" + callback.headers().getFirst("reveille-schedule-id")), "the callback names the schedule");

        check(deliver(target, callback, callback.body()) == 204, "the receiver accepts the duplicate");
        check(deliver(target, callback, callback.body() + " ") == 401, "the receiver rejects a changed body");
        check(inbox.callbacks.isEmpty(), "the receiver drops the duplicate and the changed body");
        System.out.println("all checks hold");
    }

    public static void main(String[] arguments) throws Exception {
        int port = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 0;
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
        Inbox inbox = new Inbox(environment("REVEILLE_SIGNING_SECRET"));
        server.createContext("/hook", inbox::handle);
        server.start();
        try {
            run(inbox, URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/hook"));
        } finally {
            server.stop(0);
        }
    }
}
