// Asks Reveille for a callback in one second, verifies the callback, and drops a duplicate of it.
//
//	go run . [PORT]
//
// REVEILLE_URL names the server, REVEILLE_KEY contains an API key, and REVEILLE_SIGNING_SECRET contains the signing
// secret of the key's tenant.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	wait         = 20 * time.Second
	bodyBytesMax = 64 * 1024 // A payload has at most 64 KiB.
)

var client = http.Client{Timeout: wait}

type callback struct {
	header http.Header
	body   []byte
}

// inbox verifies callbacks, drops duplicates, and sends each other callback to a channel.
type inbox struct {
	webhook *standardwebhooks.Webhook
	mutex   sync.Mutex
	// A restart loses these ids. A real service stores the id in its database, in the transaction that does the
	// callback's work. Then a crash can neither lose the work nor repeat it.
	ids       map[string]bool
	callbacks chan callback
}

// ServeHTTP responds with 2xx if the callback is valid. Reveille repeats the callback later after any other response.
func (in *inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytesMax))
	if err != nil {
		http.Error(w, "cannot read the body", http.StatusBadRequest)
		return
	}
	// The signature covers the raw bytes of the body. Verify also rejects a timestamp that differs from the clock by more
	// than five minutes.
	if err := in.webhook.Verify(body, r.Header); err != nil {
		fmt.Printf("rejected a request: %v\n", err)
		http.Error(w, "invalid signature", http.StatusUnauthorized)
		return
	}
	id := r.Header.Get(standardwebhooks.HeaderWebhookID)
	if in.isNew(id) {
		fmt.Printf("received %s: %s\n", id, body)
		in.callbacks <- callback{r.Header.Clone(), body}
	} else {
		fmt.Printf("dropped a duplicate of %s\n", id)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (in *inbox) isNew(id string) bool {
	in.mutex.Lock()
	defer in.mutex.Unlock()
	if in.ids[id] {
		return false
	}
	in.ids[id] = true
	return true
}

type schedule struct {
	At      time.Time         `json:"at"`
	Target  target            `json:"target"`
	Payload map[string]string `json:"payload"`
}

type target struct {
	HTTP struct {
		URL string `json:"url"`
	} `json:"http"`
}

type summary struct {
	ID   string    `json:"id"`
	Next time.Time `json:"next"`
}

// create creates the schedule. A second request with the same key creates no second schedule.
func create(wanted schedule) (created summary, err error) {
	body, err := json.Marshal(wanted)
	if err != nil {
		return summary{}, err
	}
	key := uniqueID()
	// A client that loses a response repeats the request with the same key and the same body. This program always
	// repeats it, to show that both responses are the same.
	first, err := post(body, key)
	if err != nil {
		return summary{}, err
	}
	second, err := post(body, key)
	if err != nil {
		return summary{}, err
	}
	if !bytes.Equal(first, second) {
		return summary{}, fmt.Errorf("the response %s to the repeated request differs from %s", second, first)
	}
	return created, json.Unmarshal(first, &created)
}

func post(body []byte, key string) ([]byte, error) {
	request, err := http.NewRequest(http.MethodPost, os.Getenv("REVEILLE_URL")+"/v1/schedules", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("REVEILLE_KEY"))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusCreated {
		err = fmt.Errorf("the server does not create the schedule: %s: %s", response.Status, text)
	}
	return text, err
}

// deliver sends the callback to the receiver again, with this body, and checks the status of the response.
func deliver(url string, received callback, body []byte, status int) error {
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for _, name := range []string{
		standardwebhooks.HeaderWebhookID, standardwebhooks.HeaderWebhookTimestamp, standardwebhooks.HeaderWebhookSignature,
	} {
		request.Header.Set(name, received.header.Get(name))
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != status {
		return fmt.Errorf("the receiver responds with %d instead of %d", response.StatusCode, status)
	}
	return nil
}

func uniqueID() string {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		log.Fatalf("failed: %v", err)
	}
	return fmt.Sprintf("%x", id)
}

func run(port string) error {
	webhook, err := standardwebhooks.NewWebhook(os.Getenv("REVEILLE_SIGNING_SECRET"))
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	in := &inbox{webhook: webhook, ids: map[string]bool{}, callbacks: make(chan callback, 16)}
	go func() { log.Fatal(http.Serve(listener, in)) }()

	wanted := schedule{At: time.Now().Add(time.Second), Payload: map[string]string{"order": uniqueID()}}
	wanted.Target.HTTP.URL = "http://" + listener.Addr().String() + "/hook"
	created, err := create(wanted)
	if err != nil {
		return err
	}
	fmt.Printf("created %s for %s\n", created.ID, created.Next)

	var received callback
	select {
	case received = <-in.callbacks:
	case <-time.After(wait):
		return fmt.Errorf("no verified callback arrives within %s", wait)
	}
	// The body has the bytes of the schedule's payload.
	payload, err := json.Marshal(wanted.Payload)
	if err != nil {
		return err
	}
	if !bytes.Equal(received.body, payload) {
		return fmt.Errorf("the body %s differs from the payload %s", received.body, payload)
	}
	if id := received.header.Get("reveille-schedule-id"); id != created.ID {
		return fmt.Errorf("the callback names the schedule %q instead of %q", id, created.ID)
	}

	if err := deliver(wanted.Target.HTTP.URL, received, received.body, http.StatusNoContent); err != nil {
		return fmt.Errorf("duplicate: %w", err)
	}
	changed := append(bytes.Clone(received.body), ' ')
	if err := deliver(wanted.Target.HTTP.URL, received, changed, http.StatusUnauthorized); err != nil {
		return fmt.Errorf("changed body: %w", err)
	}
	if len(in.callbacks) > 0 {
		return errors.New("the receiver accepts the duplicate or the changed body as a new callback")
	}
	fmt.Println("all checks hold")
	return nil
}

func main() {
	log.SetFlags(0)
	// Version 0.0.1 of the library accepts an empty secret. Then every sender can create valid signatures.
	for _, name := range []string{"REVEILLE_URL", "REVEILLE_KEY", "REVEILLE_SIGNING_SECRET"} {
		if os.Getenv(name) == "" {
			log.Fatalf("failed: the environment does not contain %s", name)
		}
	}
	port := "0"
	if len(os.Args) > 1 {
		port = os.Args[1]
	}
	if err := run(port); err != nil {
		log.Fatalf("failed: %v", err)
	}
}
