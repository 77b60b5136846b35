// Package store keeps measurements in Redis. Agents write cumulative blobs of their own, so that a write may be lost,
// repeated or overtaken without harm; a profile's owner reads them, merges them and folds closed hours into blocks.
package store

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The schema, version 1. <mh> is a profile's measurement hash (16 hex digits); as a hash tag it puts all keys of a profile
// in one slot of a cluster. Hours count from 1970. Keys are computed, never scanned for.
//
//	plimsoll:1:{<mh>}:h:<hour>    hash: <container>|<agent>|<epoch> → hour blob (blob.go)              TTL hourTTL
//	plimsoll:1:{<mh>}:b:<block>   hash: <container> → block blob (block.go)                            TTL the window and a block
//	                                    #<hour> → ids of the fields folded, until the hour is closed
//	                                    #closed → hour up to which the block's hours are closed: they take nothing any more
//	                                    #v → random, new at each change
//	plimsoll:1:{<mh>}:live        hash: <podUID>/<container> → live value (live.go)                    TTL liveTTL
//	plimsoll:1:{<mh>}:oom         hash: <container>|<podUID>|<kernel time> → OOM kill (oom.go)         TTL oomTTL
//	plimsoll:1:{<mh>}:reset       string: the moment of the last reset, Unix ms                        TTL resetTTL
//
// A block is named by its first hour. It is a quarter of the half-life long when it is written; since a policy can change
// that, whoever looks for the mark of an hour looks in every block that could hold it (blocksOf).
const (
	schemaVersion = "1"

	// hourTTL is how long hours wait for an owner to fold them: a long weekend.
	hourTTL = 80 * time.Hour
	liveTTL = 2 * time.Minute
	oomTTL  = 8 * 24 * time.Hour
	// resetTTL outlasts every blob an agent may still write: they give up after a day.
	resetTTL = 72 * time.Hour

	// foldAfter is how long after the end of its hour a field that was never marked final is folded.
	foldAfter = 6
	// closeAfter is how many hours after its end an hour takes nothing any more.
	closeAfter = 24

	// MaxWindow is the longest history that is read or purged.
	MaxWindow = 32 * 24 * time.Hour

	versionField = "#v"
	closedField  = "#closed"
	markPrefix   = "#"
)

// blockLengths are the lengths in hours a block can have: the divisors of a day, so that blocks of one length never
// straddle another's day.
var blockLengths = [...]int64{1, 2, 3, 4, 6, 8, 12, 24}

const longestBlock = 24

// HourOf returns the hour a moment lies in.
func HourOf(t time.Time) int64 { return t.Unix() / 3600 }

func hourStart(hour int64) time.Time { return time.Unix(hour*3600, 0) }

func prefix(hash string) string { return "plimsoll:" + schemaVersion + ":{" + hash + "}:" }

func hourKey(hash string, hour int64) string {
	return prefix(hash) + "h:" + strconv.FormatInt(hour, 10)
}

func blockKey(hash string, block int64) string {
	return prefix(hash) + "b:" + strconv.FormatInt(block, 10)
}

func liveKey(hash string) string  { return prefix(hash) + "live" }
func oomKey(hash string) string   { return prefix(hash) + "oom" }
func resetKey(hash string) string { return prefix(hash) + "reset" }

func markField(hour int64) string { return markPrefix + strconv.FormatInt(hour, 10) }

// parseMark returns the hour of a mark's field name.
func parseMark(field string) (int64, bool) {
	digits, ok := strings.CutPrefix(field, markPrefix)
	if !ok {
		return 0, false
	}
	hour, err := strconv.ParseInt(digits, 10, 64)
	return hour, err == nil
}

// blockOf returns the block an hour is folded into under a half-life: the longest not above a quarter of it.
func blockOf(hour int64, halfLife time.Duration) int64 {
	quarter := int64(halfLife / 4 / time.Hour)
	length := blockLengths[0]
	for _, l := range blockLengths {
		if l <= quarter {
			length = l
		}
	}
	return hour - hour%length
}

// blocksOf returns every block that can hold an hour's mark, whatever half-life it was folded under.
func blocksOf(hour int64) []int64 {
	blocks := make([]int64, 0, len(blockLengths))
	for _, l := range blockLengths {
		if b := hour - hour%l; len(blocks) == 0 || blocks[len(blocks)-1] != b {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// Field names one blob: what one agent measured of a container name of a profile within an hour, since it last started
// from nothing. Epoch is drawn at random for each, so a field is never reused by an emptier one.
type Field struct {
	Hash      string
	Hour      int64
	Container string
	Agent     string
	Epoch     uint64
}

// name returns the field's name within its hour's hash.
func (f Field) name() string {
	return f.Container + "|" + f.Agent + "|" + fmt.Sprintf("%016x", f.Epoch)
}

// parseField is the inverse of name.
func parseField(hash string, hour int64, name string) (Field, error) {
	parts := strings.Split(name, "|")
	if len(parts) != 3 || parts[0] == "" || strings.HasPrefix(parts[0], markPrefix) || parts[1] == "" || len(parts[2]) != 16 {
		return Field{}, fmt.Errorf("field %q of hour %d is not container|agent|epoch", name, hour)
	}
	epoch, err := strconv.ParseUint(parts[2], 16, 64)
	if err != nil {
		return Field{}, fmt.Errorf("field %q of hour %d: epoch is not hexadecimal", name, hour)
	}
	return Field{Hash: hash, Hour: hour, Container: parts[0], Agent: parts[1], Epoch: epoch}, nil
}

// validHash reports whether a measurement hash can be a hash tag: anything else could reach another profile's keys.
func validHash(hash string) error {
	if len(hash) != 16 || strings.Trim(hash, "0123456789abcdef") != "" {
		return fmt.Errorf("measurement hash %q is not 16 hexadecimal digits", hash)
	}
	return nil
}
