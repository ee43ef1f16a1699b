-- Give the lease back and wake a waiter, for KEYS = lock:{resource}, wake:{resource}, ARGV = value.
-- Returns 1 when this call removed it, 0 when it held another value or none. Who waits does so by BLPOP on the wake-up
-- list, and looks for itself every second.
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1])
if redis.call('exists', KEYS[2]) == 0 then
    redis.call('rpush', KEYS[2], '1')
    redis.call('pexpire', KEYS[2], 1000)
end
return 1
