import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.nio.file.Path;
import java.nio.file.Files;

/** Sends a file with HttpURLConnection, and writes the response to the standard output. */
final class Batch {
    /** @param arguments the URL, the API key and the path of the file */
    public static void main(String[] arguments) throws IOException {
        Path batch = Path.of(arguments[2]);
        HttpURLConnection connection = (HttpURLConnection) URI.create(arguments[0]).toURL().openConnection();
        connection.setRequestMethod("POST");
        connection.setRequestProperty("Authorization", "Bearer " + arguments[1]);
        connection.setRequestProperty("Content-Type", "application/x-ndjson");
        connection.setDoOutput(true);
        connection.setFixedLengthStreamingMode(Files.size(batch));
        try (OutputStream request = connection.getOutputStream()) {
            Files.copy(batch, request);
        }
        try (InputStream response = connection.getInputStream()) {
            response.transferTo(System.out);
        }
        System.out.flush();
    }
}
