-- Look at the lease, for KEYS[1] = lock:{resource}. Returns its value, or nil, and the milliseconds it has left.
return {redis.call('get', KEYS[1]), redis.call('pttl', KEYS[1])}
