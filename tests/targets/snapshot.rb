# Nests Ruby frames of many kinds around a read of its input, and describes them first: a line of JSON with the functions and lines,
# the innermost first. Functions in C have the line 0.

require 'json'

IN_C = %w[each new].freeze
WAITING = RUBY_VERSION >= '3.4' ? 'IO#readpartial' : 'readpartial'

def wait
  here = __LINE__ + 4
  stack = caller_locations(1).map { |at| [at.label, IN_C.include?(at.label.split('#').last) ? 0 : at.lineno] }
  stack.unshift([WAITING, 0], [caller_locations(0)[0].label, here])
  $stdout.puts(stack.to_json)
  $stdout.flush && $stdin.readpartial(1)
end

def recursion(depth)
  return wait if depth.zero?

  recursion(depth - 1)
end

def yielding
  yield
end

class Shape
  def initialize
    [3].each { |depth| yielding { recursion(depth) } }
  end

  def self.make
    new
  end

  define_method(:defined) do
    Shape.make
  rescue ArgumentError
    nil
  end

  def überall
    defined
  ensure
    @done = true
  end
end

Shape.allocate.überall
