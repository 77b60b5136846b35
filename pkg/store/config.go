package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Config says which Redis to use.
type Config struct {
	// URL is redis://[user:password@]host[:port][,host[:port]...][/db][?master=NAME|mode=cluster], or rediss:// for TLS.
	// With master= the hosts are Sentinels; several hosts without it, or mode=cluster, are a Redis Cluster.
	URL string
	// Username and Password, as from a Secret, override those of the URL.
	Username, Password string
	// SentinelUsername and SentinelPassword are for the Sentinels themselves.
	SentinelUsername, SentinelPassword string
	// TLS overrides what rediss:// implies, for instance with a CA of one's own; it is used only with rediss://.
	TLS *tls.Config
	// Timeout bounds connecting, and each reply; 0 means 3 s.
	Timeout time.Duration
}

// Store reads and writes measurements. It is safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	tls    bool
	// connections counts connections made: what was written or cached before it changed may not be there any more.
	connections atomic.Uint64

	mu    sync.Mutex
	cache map[string]*base
}

// Open returns a store for the configuration without connecting: Redis may be away. An error names the part of the
// configuration to change.
func Open(c Config) (*Store, error) {
	o, err := c.options()
	if err != nil {
		return nil, err
	}
	silence()
	s := &Store{tls: o.TLSConfig != nil, cache: map[string]*base{}}
	o.OnConnect = func(context.Context, *redis.Conn) error {
		s.connections.Add(1)
		return nil
	}
	s.client = redis.NewUniversalClient(o)
	return s, nil
}

// silence keeps go-redis from writing to standard error what its callers get as errors.
var silence = sync.OnceFunc(func() { redis.SetLogger(silent{}) })

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Close closes all connections.
func (s *Store) Close() error { return s.client.Close() }

// Connections counts the connections made so far. When it changes, Redis may have restarted or failed over, and lost the
// last writes or all.
func (s *Store) Connections() uint64 { return s.connections.Load() }

// Ping reports whether Redis answers, with an error that says what to do if it does not.
func (s *Store) Ping(ctx context.Context) error {
	err := s.client.Ping(ctx).Err()
	if err == nil {
		return nil
	}
	hint := "check that the host and port of the Redis URL are reachable from here"
	var unknown *tls.CertificateVerificationError
	var dns *net.DNSError
	switch text := err.Error(); {
	case strings.HasPrefix(text, "WRONGPASS"):
		hint = "the user name or password is wrong: correct the Secret"
	case strings.HasPrefix(text, "NOAUTH"):
		hint = "Redis wants a password: set it in the Secret"
	case strings.HasPrefix(text, "NOPERM"):
		hint = "the user needs +@hash +@string +@keyspace +@scripting on keys plimsoll:*"
	case strings.Contains(text, "cluster support disabled"):
		hint = "this Redis is not a cluster: give one host, or master= for Sentinels"
	case errors.As(err, &unknown):
		hint = "give the CA that signed Redis's certificate"
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		hint = "Redis does not speak TLS there: use redis:// instead of rediss://"
	case s.tls && errors.Is(err, context.DeadlineExceeded):
		hint = "if Redis does not speak TLS there, use redis:// instead of rediss://"
	case errors.As(err, &dns):
		hint = "the host name of the Redis URL does not resolve"
	}
	return fmt.Errorf("connecting to Redis: %w (%s)", err, hint)
}

func (c Config) options() (*redis.UniversalOptions, error) {
	o := &redis.UniversalOptions{
		Username: c.Username, Password: c.Password,
		SentinelUsername: c.SentinelUsername, SentinelPassword: c.SentinelPassword,
		DialTimeout: c.Timeout, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout,
		// Whoever calls tries again by itself; more retries here would only make it wait longer to learn.
		MaxRetries: 1, DialerRetries: 1,
		// Idle connections are kept: a new one means that what was cached has to be read again.
		ConnMaxIdleTime:       -1,
		ContextTimeoutEnabled: true,
		DisableIdentity:       true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
	if c.Timeout == 0 {
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout = 3*time.Second, 3*time.Second, 3*time.Second
	}
	if err := c.parseURL(o); err != nil {
		return nil, fmt.Errorf("reading the Redis URL: %w", err)
	}
	return o, nil
}

// parseURL takes the URL apart by hand: net/url refuses several hosts with ports. No error repeats the URL, which can
// hold a password.
func (c Config) parseURL(o *redis.UniversalOptions) error {
	scheme, rest, ok := strings.Cut(c.URL, "://")
	if !ok {
		return errors.New("it has no scheme: write redis://host:6379 or rediss://host:6379")
	}
	switch scheme {
	case "redis":
	case "rediss":
		o.TLSConfig = c.TLS
		if o.TLSConfig == nil {
			o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	default:
		return fmt.Errorf("scheme %q is not known: use redis or rediss", scheme)
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, db, _ := strings.Cut(rest, "/")
	hosts := authority
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		hosts = authority[at+1:]
		if err := c.parseUser(o, authority[:at]); err != nil {
			return err
		}
	}
	for host := range strings.SplitSeq(hosts, ",") {
		addr, err := address(host)
		if err != nil {
			return err
		}
		o.Addrs = append(o.Addrs, addr)
	}
	if db != "" {
		if _, err := fmt.Sscanf(db, "%d", &o.DB); err != nil || fmt.Sprint(o.DB) != db || o.DB < 0 {
			return fmt.Errorf("path %q is not a database number", db)
		}
	}
	return parseQuery(o, query)
}

func (c Config) parseUser(o *redis.UniversalOptions, userinfo string) error {
	user, password, _ := strings.Cut(userinfo, ":")
	user, err1 := url.PathUnescape(user)
	password, err2 := url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		return errors.New("user name or password is not percent-encoded")
	}
	if c.Username == "" {
		o.Username = user
	}
	if c.Password == "" {
		o.Password = password
	}
	return nil
}

// address adds the default port to a host that has none.
func address(host string) (string, error) {
	if _, port, err := net.SplitHostPort(host); err == nil && port != "" {
		return host, nil
	}
	bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if bare == "" || strings.ContainsAny(bare, "[]@ ") || strings.HasSuffix(bare, ":") {
		return "", fmt.Errorf("host %q is not host or host:port", host)
	}
	if strings.Contains(bare, ":") && net.ParseIP(bare) == nil {
		return "", fmt.Errorf("host %q is not host or host:port", host)
	}
	return net.JoinHostPort(bare, "6379"), nil
}

func parseQuery(o *redis.UniversalOptions, query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	for name, v := range values {
		switch {
		case name == "master" && v[0] != "":
			o.MasterName = v[0]
		case name == "mode" && v[0] == "cluster":
			o.IsClusterMode = true
		default:
			return fmt.Errorf("option %s=%s is not known: use master=NAME or mode=cluster", name, v[0])
		}
	}
	switch cluster := o.IsClusterMode || (len(o.Addrs) > 1 && o.MasterName == ""); {
	case cluster && o.MasterName != "":
		return errors.New("master= and mode=cluster exclude each other")
	case cluster && o.DB != 0:
		return errors.New("a Redis Cluster has database 0 only")
	}
	return nil
}
