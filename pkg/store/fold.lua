-- Takes fields of one hour into a block, all or nothing. Returns 1, or 0 if anything is not as it was read.
--
-- KEYS  reset, hour, block, then every other block that could hold the hour's mark
-- ARGV  reset mark, mark's field, mark, hour up to which the block is closed, TTL in ms, new version,
--       version of each block in the order of KEYS (empty if there is none),
--       number of fields, each with the header its blob began with (empty: whatever it is),
--       then containers, each with its new block blob.
--       Once the hour takes nothing any more there is no mark but the hour it is closed up to, and the hour's key goes.
local function get(key, field) return redis.call('HGET', key, field) or '' end

if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
local at = 7
for k = 3, #KEYS do
  if get(KEYS[k], '#v') ~= ARGV[at] then return 0 end
  at = at + 1
end
local fields = tonumber(ARGV[at])
local first = at + 1
for i = first, first + 2 * fields - 2, 2 do
  local header = ARGV[i + 1]
  if header ~= '' and string.sub(get(KEYS[2], ARGV[i]), 1, #header) ~= header then return 0 end
end

-- Deleting comes first: a Redis that is full lets a script go on to write only if its first write freed memory.
redis.call('HDEL', KEYS[3], ARGV[2])
for i = first, first + 2 * fields - 2, 2 do redis.call('HDEL', KEYS[2], ARGV[i]) end
if ARGV[4] ~= '' then redis.call('DEL', KEYS[2]) end

for i = first + 2 * fields, #ARGV - 1, 2 do redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[3], '#closed', ARGV[4])
else
  redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
end
redis.call('HSET', KEYS[3], '#v', ARGV[6])
redis.call('PEXPIRE', KEYS[3], ARGV[5])
return 1
