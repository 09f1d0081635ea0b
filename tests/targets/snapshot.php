<?php
// Nests frames of PHP of many kinds around a read of its input, and describes them first: a line of JSON with the functions and lines,
// the innermost first. Functions in C have the line 0.
namespace Demo;

/** Functions and lines, of which the first is that of the call. */
function described(array $trace, int $line): array
{
    $stack = [['fgets', 0]];
    foreach ($trace as $at => $call) {
        $caller = $trace[$at + 1] ?? ['function' => '{main}'];
        $name = isset($caller['class']) ? $caller['class'] . '::' . $caller['function'] : $caller['function'];
        $stack[] = [$name, $at === 0 ? $line : ($call['line'] ?? 0)];
    }
    return $stack;
}

function wait(): void
{
    $trace = \debug_backtrace(\DEBUG_BACKTRACE_IGNORE_ARGS);
    \array_unshift($trace, ['line' => 0]);
    echo \json_encode(described($trace, __LINE__ + 1)), "\n";
    \fgets(\STDIN);
}

function recursion(int $depth): void
{
    $depth === 0 ? wait() : recursion($depth - 1);
}

function generator(): iterable
{
    recursion(3);
    yield 1;
}

class Shape
{
    public function __construct()
    {
        \array_map(fn ($number) => \iterator_to_array(generator()), [1]);
    }

    public static function make(): self
    {
        return new self();
    }

    public function __get(string $name): self
    {
        return self::make();
    }
}

$shape = (new \ReflectionClass(Shape::class))->newInstanceWithoutConstructor();
$shape->area;
