package store

import (
	"time"

	"plimsoll.dev/pkg/sketch"
)

// These are for tests of the parsers and names, which nobody outside calls.
var (
	BlocksOf   = blocksOf
	BlockOf    = blockOf
	ParseField = parseField
	ParseKill  = parseKill
	HourKey    = hourKey
	BlockKey   = blockKey
)

func (f Field) Name() string { return f.name() }

// AppendKill and AppendLive encode values as a flush does.
func AppendKill(k OOMKill) (field string, value []byte) { return k.field(), k.appendBinary(nil) }
func AppendLive(l Live) []byte                          { return l.appendBinary(nil) }
func (l *Live) Unmarshal(b []byte) error                { return l.unmarshal(b) }

// ReencodeBlock decodes a block blob and encodes it again.
func ReencodeBlock(b []byte, first int64) ([]byte, error) {
	hours, sketches, err := decodeBlock(b, first)
	if err != nil {
		return nil, err
	}
	var blob Blob
	err = eachSketch(sketches, func(id byte, encoded []byte) error {
		into, err := blob.sketch(id)
		if err != nil {
			return err
		}
		return into.UnmarshalBinary(encoded)
	})
	if err != nil {
		return nil, err
	}
	k := block{hours: hours, usage: blob.Usage, startup: blob.Startup}
	return k.appendBinary(nil, first)
}

// EncodeBlock encodes a block of one hour.
func EncodeBlock(first, hour int64, m Minutes, s *sketch.Sketch) ([]byte, error) {
	k := block{hours: []hourMinutes{{hour, m}}}
	k.usage[0], k.startup[1] = s, s
	return k.appendBinary(nil, first)
}

// EncodeMark encodes a mark of fields, each with its flush number, 0 for final.
func EncodeMark(fields map[string]uint64) []byte {
	var b []byte
	for name, flush := range fields {
		b = appendMark(b, name, &Blob{Final: flush == 0, Flush: flush})
	}
	return b
}

// MarkHas decodes a mark and returns whether it has a field, and its flush number.
func MarkHas(b []byte, name string) (bool, uint64, error) {
	m, err := decodeMark(b)
	return m.has(name), m.fields[fieldID(name)], err
}

// OptionsOf returns what a configuration means.
func OptionsOf(c Config) (addrs []string, user, password, master string, db int, tls, cluster bool, timeout time.Duration, err error) {
	o, err := c.options()
	if err != nil {
		return
	}
	return o.Addrs, o.Username, o.Password, o.MasterName, o.DB, o.TLSConfig != nil,
		o.IsClusterMode || (len(o.Addrs) > 1 && o.MasterName == ""), o.ReadTimeout, nil
}
