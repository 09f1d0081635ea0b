# Sinatra. Appends a line of JSON per block to the file $STACKS: the labels, files and lines of its stack, the innermost first.
# Methods in C have the file and line of their caller.

require 'json'
require 'sinatra/base'

# Bytes of each block, with the zero at the end of a string.
SIZE = 40_961
OUTPUT = File.open(ENV.fetch('STACKS'), 'a').tap { |file| file.sync = true }

# The block and its description on one line, which both have.
def block
  written('x' * (SIZE - 1), caller_locations(0))
end

def written(text, locations)
  stack = locations.map { |location| [location.label, location.absolute_path || location.path || '', location.lineno] }
  OUTPUT.syswrite("#{stack.to_json}\n")
  text
end

def recursion(depth) = depth.zero? ? block : recursion(depth - 1)

class Model
  include Comparable
  attr_reader :number

  def initialize(number)
    @number = number
    block
  end

  def <=>(other)
    block
    number <=> other.number
  end

  def each
    return enum_for(:each) unless block_given?

    yield block
    yield block
  end

  def method_missing(name, *) = name == :dynamic ? block : super

  def respond_to_missing?(*) = true
end

class Service < Sinatra::Base
  set :environment, :production
  set :protection, false
  disable :logging

  before { block }

  helpers do
    def handle(number)
      case number % 4
      when 0 then [Model.new(2), Model.new(1)].min.dynamic.size
      when 1 then Model.new(1).each.next.size
      when 2 then recursion(number % 23).size
      else Thread.new { [1].map { |_| block } }.value.size
      end
    end
  end

  get('/function/:number') { handle(params['number'].to_i).to_s }
  get('/:number') { erb '<%= handle(params["number"].to_i) %>' }
end
