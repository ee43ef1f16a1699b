-- Put a newer value into the lease, for KEYS[1] = lock:{resource}, ARGV = old value, new value, ttl in milliseconds.
-- Returns 1 when the lease holds the new value, 0 when it holds neither. Never shortens.
local value = redis.call('get', KEYS[1])
if value ~= ARGV[1] and value ~= ARGV[2] then return 0 end
redis.call('set', KEYS[1], ARGV[2], 'px', math.max(tonumber(ARGV[3]), redis.call('pttl', KEYS[1])))
return 1
