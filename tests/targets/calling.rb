# Allocates strings below many kinds of Ruby frames, with a size of its own for each, and prints Ruby's own description of the stack:
# the size, a tab, and the frames, the innermost first: label, path and line, with ESC between them, separated by tabs.
#
# Usage: calling.rb [compact|once]. With `compact`, objects move. With `once`, it ends after the first round, which it begins at once.
# Else it prints `ready`, answers each line of its input with its blocks and `done`, and keeps these blocks.

require 'tempfile'

BYTES_MIN = 100_000
KEPT = []
LINES = []
# What is described without a description of its own.
SILENT = []

# The block and its description on one line, which both have.
def block(path, repeats = 1)
  size = BYTES_MIN + 16 * path
  repeats.times { KEPT << [('x' * size), describe(size, caller_locations(0))] }
end

def describe(size, locations)
  frames = locations.map { |location| [location.label, location.absolute_path || location.path, location.lineno].join("\e") }
  # Strings end in a zero.
  LINES << [size + 1, *frames].join("\t")
end

def nested(path)
  inner(path)
  inner(path + 1)
end

def inner(path) = block(path, 3)

def recursion(depth, path)
  return block(path) if depth.zero?

  recursion(depth - 1, path)
end

def yielding
  yield
end

module Shapes
  class Shape
    attr_reader :path

    def initialize(path)
      @path = path
      draw
    end

    def draw
      block(@path)
    end

    def self.make(path)
      new(path)
    end

    class << self
      def other(path)
        block(path)
      end
    end
  end

  class Square < Shape
    def draw
      super
      self.class.other(@path + 1)
    end
  end

  def self.in_module(path)
    block(path)
  end
end

module Mixed
  def mixed(path)
    block(path)
  end
end

class Dynamic
  include Mixed
  include Comparable

  attr_reader :number

  def initialize(number = 0)
    @number = number
  end

  define_method(:defined) { |path| block(path) }

  def method_missing(name, *arguments)
    return super unless name == :missing

    block(arguments.first)
  end

  def respond_to_missing?(name, all = false)
    name == :missing || super
  end

  def <=>(other)
    block(60) if SILENT.empty?
    SILENT << other
    @number <=> other.number
  end

  def to_s
    block(61)
    'text'
  end

  def each
    block(62)
    yield 1
    block(63)
    yield 2
  end

  include Enumerable

  protected

  def hidden(path)
    block(path)
  end

  class_eval <<~RUBY, 'evaluated.rb', 500
    def evaluated(path)
      block(path)
    end
  RUBY
end

class << (SINGLE = Object.new)
  def single(path)
    block(path)
  end
end

ANONYMOUS = Class.new do
  def anonymous(path)
    block(path)
  end
end

def blocks
  [1].each { block(10) }
  [1].map { |_| block(11) }
  [1, 2].inject(0) { |sum, number| block(11 + number); sum + number }
  1.times { 1.upto(1) { [1].each_with_index { |_, _| block(14) } } }
  { a: 1 }.each_pair { |_, _| block(15) }
  yielding { yielding { block(16) } }
  [2, 1].sort_by { |number| block(17) if number == 1; number }
  [3, 4].each_slice(1).with_index.map { |_, index| block(18) if index.zero? }
  1.step(1) { block(19) }
  loop { break block(20) }
  [[1, 2]].each { |first, second| [first, second].select { |number| block(21) if number == 1 } }
  1.then { block(22) }
  'a'.gsub(/a/) { block(23); 'b' }
  tap { block(24) }
end

def procs
  taken = proc { |path| block(path) }
  taken.call(30)
  taken.(31)
  strict = ->(path) { block(path) }
  strict[32]
  [33].each(&strict)
  [34].each(&method(:block))
  method(:nested).to_proc.call(35)
  strict.curry.call(37)
  (strict >> ->(_) { block(38) }).call(39)
  %i[mixed].each { |name| Dynamic.new.public_send(name, 40) }
  Dynamic.instance_method(:mixed).bind(Dynamic.new).call(41)
end

def dynamic
  Dynamic.new.defined(50)
  Dynamic.new.missing(51)
  Dynamic.new.mixed(52)
  Dynamic.new.send(:hidden, 53)
  Dynamic.new.evaluated(54)
  SINGLE.single(55)
  ANONYMOUS.new.anonymous(56)
  Dynamic.new(1) < Dynamic.new(2)
  "#{Dynamic.new}"
  Dynamic.new.each_slice(2).to_a
  Dynamic.new.instance_eval { block(57) }
  Dynamic.class_exec { block(58) }
  Class.new { block(59) }
  eval('block(64)')
  eval("\n\n[1].each { block(65) }", binding, 'given.rb', 7)
  binding.local_variable_set(:number, 1)
  Object.const_get(:Shapes).in_module(66)
end

def handling
  begin
    raise ArgumentError, 'expected'
  rescue ArgumentError
    block(70)
  ensure
    block(71)
  end
  begin
    block(72)
  ensure
    block(73)
  end
  begin
    [1].each do
      raise 'expected'
    ensure
      block(74)
    end
  rescue StandardError => error
    block(75)
    error.message
  end
  catch(:done) { throw :done, block(76) }
  returning
  retried = 0
  begin
    retried += 1
    raise 'again' if retried < 2

    block(78)
  rescue StandardError
    block(79)
    retry
  end
end

def returning
  return [1].each { return block(77) }
ensure
  block(80)
end

def contexts
  fiber = Fiber.new do |path|
    block(path)
    nested(Fiber.yield)
    block(92)
  end
  fiber.resume(90)
  fiber.resume(93)
  Thread.new { block(95) }.join
  Thread.new { [1].each { Thread.new { nested(96) }.join } }.join
  enumerator = Enumerator.new { |results| block(98); results << 1; block(99); results << 2 }
  enumerator.next
  enumerator.next
  Dynamic.new.each_entry.next
  lazy = (1..3).lazy.map { |number| block(100) if number == 1; number }.select(&:odd?)
  lazy.first(1)
  external = [1, 2].each
  external.next
  Fiber.new { Fiber.new { block(101) }.resume; block(102) }.resume
end

# Arguments of several lines: each has its own.
def lines(path)
  [
    block(path),
    block(path + 1), [block(
      path + 2
    )],
    if path.positive?
      block(path + 3)
    end
  ]
  path > 0 &&
    block(path + 4)
end

def keywords(path:, more: block(path))
  block(path + 1)
  more
end

def defaults(path, more = block(path), *rest, &given)
  given&.call(path + 1)
  [more, rest]
end

# More instructions than an index of lines has in its first words, or in a block.
LONG = Tempfile.new(['long', '.rb'])
LONG.write("def long(path)\n  sum = 0\n", "  sum += path * 3 - sum / 2 + [path].sum\n" * 300, "  block(path)\n", "  sum -= 1\n" * 300,
           "  block(path + 1)\nend\nblock(125)\n")
LONG.close

def everything
  nested(1)
  recursion(200, 3)
  Shapes::Shape.make(4)
  Shapes::Square.new(5)
  Shapes::Shape.other(7)
  Shapes.in_module(8)
  blocks
  procs
  dynamic
  handling
  contexts
  lines(110)
  keywords(path: 115)
  defaults(117) { |path| block(path) }
  load LONG.path
  long(120)
  # Large, so that each call has a stack of its own.
  5.times { |round| block(130 + round, 2) }
  [0].freeze.then { SILENT.clear }
end

$stdout.sync = true
GC.auto_compact = true if ARGV.first == 'compact'
if ARGV.first == 'once'
  everything
  exit
end
puts 'ready'
while $stdin.gets
  LINES.clear
  GC.compact if ARGV.first == 'compact'
  everything
  puts LINES, 'done'
end
