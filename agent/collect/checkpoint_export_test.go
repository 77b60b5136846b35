package collect

import (
	"encoding/binary"
	"hash/crc32"
)

var (
	DecodeCheckpoint = decodeCheckpoint
	EncodeCheckpoint = encodeCheckpoint
)

// Checksummed appends the checksum a checkpoint with this body has.
func Checksummed(body []byte) []byte {
	return binary.BigEndian.AppendUint32(append([]byte(nil), body...), crc32.Checksum(body, castagnoli))
}
