# A round of work by Ruby for `cargo xtask faults --engine inline`: the protocol is that of attacked.h.
require 'digest'
require 'json'

def do_round
  table = (0...400).to_h { |i| [i.to_s, (0...(i % 50)).map { |j| i * j }] }
  text = JSON.generate(table)
  raise 'another table' unless JSON.parse(text) == table
  fiber = Fiber.new { 20.times { |i| Fiber.yield('x' * (i * 1000)) } }
  sizes = 20.times.map { fiber.resume.size }
  Digest::SHA256.hexdigest(text + sizes.join(','))[0, 16]
end

$stdout.sync = true
result = do_round
wrong = 0
rounds = 1
waits = false
puts 'ready'
loop do
  while waits || IO.select([$stdin], nil, nil, 0)
    line = ($stdin.gets || 'stop').strip
    if line == 'stop'
      puts "result #{result} wrong #{wrong} rounds #{rounds}"
      exit
    end
    waits = line == 'idle'
    puts 'idle' if waits
  end
  wrong += 1 if do_round != result
  rounds += 1
end
