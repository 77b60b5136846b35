package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// scanner walks over JSON without copying it. It finds where values end and
// leaves it to whoever decodes a value to refuse what is malformed inside.
type scanner struct {
	data []byte
	at   int
}

// maxDepth bounds nesting, as the decoders' own limit does.
const maxDepth = 10000

var errTruncated = errors.New("unexpected end of JSON input")

func (s *scanner) space() {
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// next skips space and takes the byte, which must be c.
func (s *scanner) next(c byte) error {
	s.space()
	if s.at >= len(s.data) {
		return errTruncated
	}
	if s.data[s.at] != c {
		return fmt.Errorf("invalid character %q at offset %d, want %q", s.data[s.at], s.at, c)
	}
	s.at++
	return nil
}

// text skips a string and returns it with its quotes.
func (s *scanner) text() ([]byte, error) {
	s.space()
	start := s.at
	if err := s.next('"'); err != nil {
		return nil, err
	}
	for {
		n := bytes.IndexByte(s.data[s.at:], '"')
		if n < 0 {
			return nil, errTruncated
		}
		s.at += n + 1
		escapes := 0
		for i := s.at - 2; i > start && s.data[i] == '\\'; i-- {
			escapes++
		}
		if escapes%2 == 0 {
			return s.data[start:s.at], nil
		}
	}
}

// value skips a value and returns it.
func (s *scanner) value() ([]byte, error) {
	s.space()
	start, depth := s.at, 0
	for s.at < len(s.data) {
		switch c := s.data[s.at]; c {
		case '"':
			if _, err := s.text(); err != nil {
				return nil, err
			}
		case '{', '[':
			if depth++; depth > maxDepth {
				return nil, errors.New("exceeded max depth")
			}
			s.at++
		case '}', ']':
			if depth == 0 { // the end of what the value is in
				return s.scalar(start)
			}
			depth--
			s.at++
		case ',':
			if depth == 0 {
				return s.scalar(start)
			}
			s.at++
		default:
			s.at++
			continue
		}
		if depth == 0 {
			return s.data[start:s.at], nil
		}
	}
	if depth > 0 {
		return nil, errTruncated
	}
	return s.scalar(start)
}

// scalar returns a number, true, false or null that ends here.
func (s *scanner) scalar(start int) ([]byte, error) {
	v := s.data[start:s.at]
	if !json.Valid(v) {
		return nil, fmt.Errorf("invalid value at offset %d", start)
	}
	return v, nil
}

// object calls f with each key and value of an object.
func (s *scanner) object(f func(key string, value []byte) error) error {
	if err := s.next('{'); err != nil {
		return err
	}
	for s.space(); s.at < len(s.data) && s.data[s.at] != '}'; s.space() {
		quoted, err := s.text()
		if err != nil {
			return err
		}
		key, err := unquote(quoted)
		if err != nil {
			return err
		}
		if err := s.next(':'); err != nil {
			return err
		}
		value, err := s.value()
		if err != nil {
			return err
		}
		if err := f(key, value); err != nil {
			return fmt.Errorf("%s: %w", clip(key), err)
		}
		s.space()
		if s.at < len(s.data) && s.data[s.at] == ',' {
			s.at++
			s.space()
			if s.at < len(s.data) && s.data[s.at] == '}' {
				return fmt.Errorf("invalid character '}' at offset %d after a comma", s.at)
			}
		} else if s.at < len(s.data) && s.data[s.at] != '}' {
			return fmt.Errorf("invalid character %q at offset %d", s.data[s.at], s.at)
		}
	}
	return s.next('}')
}

// unquote reads a JSON string; one of plain ASCII is what stands between its quotes.
func unquote(quoted []byte) (string, error) {
	inner := quoted[1 : len(quoted)-1]
	for _, c := range inner {
		if c < ' ' || c > '~' || c == '\\' {
			var s string
			err := json.Unmarshal(quoted, &s)
			return s, err
		}
	}
	return string(inner), nil
}
