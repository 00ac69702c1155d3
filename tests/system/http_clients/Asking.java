import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;

/** Carries out requests from its standard input, with Java's client as it comes: it offers h2c. */
public class Asking {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] part = line.split("\t", 4);
            byte[] bytes = part[3].getBytes(StandardCharsets.UTF_8);
            BodyPublisher body =
                bytes.length == 0 ? BodyPublishers.noBody()
                : part[2].equals("chunked")
                    ? BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(bytes))
                    : BodyPublishers.ofByteArray(bytes);
            HttpRequest request =
                HttpRequest.newBuilder(URI.create(part[1]))
                    .method(part[0], body)
                    .timeout(Duration.ofSeconds(20))
                    .build();
            HttpResponse<String> answer =
                client.send(request, HttpResponse.BodyHandlers.ofString(StandardCharsets.UTF_8));
            System.out.println(answer.statusCode() + "\t" + answer.body());
        }
    }
}
