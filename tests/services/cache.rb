# A service that keeps a session for each user, in a hash.
class Session
  def initialize(id)
    @id = id
    @name = "user-number-that-is-long-#{id}"
    @tags = [id, id + 1, id + 2, id + 3]
  end
end

$cache = {}

def login(id)
  $cache[id] = Session.new(id)
end

id = 0
loop do
  if id < 800_000
    login(id)
    id += 1
  else
    sleep 0.05
  end
  sleep 0.002 if id % 500 == 0
end
