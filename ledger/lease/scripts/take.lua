-- Take the lease, for KEYS[1] = lock:{resource}, ARGV = value, ttl in milliseconds; the value is holder:token.
-- Returns nil when it is taken, else the value in the way and the milliseconds it has left. A key that holds this very
-- value is ours: the reply was lost. Never shortens.
if redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', ARGV[2]) then return false end
local value = redis.call('get', KEYS[1])
if value == ARGV[1] then
    redis.call('pexpire', KEYS[1], ARGV[2], 'gt')
    return false
end
return {value, redis.call('pttl', KEYS[1])}
