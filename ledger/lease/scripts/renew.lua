-- Keep the lease, for KEYS[1] = lock:{resource}, ARGV = value, ttl in milliseconds.
-- Returns the value that it holds now, or nil: another value than ours means that it is lost. Never shortens, never
-- brings back a key that is gone.
local value = redis.call('get', KEYS[1])
if value == ARGV[1] then redis.call('pexpire', KEYS[1], ARGV[2], 'gt') end
return value
