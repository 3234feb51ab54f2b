import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

/** Java's own client with its defaults: it offers an upgrade to HTTP/2 with its first request. */
public class JavaClient {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int node = 0; node < 3; node++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0] + "/predict"))
                .header("content-type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString("{\"nodes\": [" + node + "]}"))
                .build();
            HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(response.statusCode() + " " + response.body());
        }
    }
}
