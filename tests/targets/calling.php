<?php
// Allocates strings in functions that are called in all ways PHP has, and describes its own stack at the line of each allocation.
// Argument: a folder for the files that it includes. Follows the protocol of targets; `go` allocates, `describe` prints a line of
// JSON per block.
namespace Demo;

$kept = [];
$noted = [];
$folder = $argv[1];

/** Bytes of a string of this length, as `zend_string_alloc` allocates it. */
function string_bytes(int $length): int
{
    return (24 + $length + 1 + 7) & ~7;
}

/** As `zend_string_safe_alloc` does it, for lengths that are computed. */
function product_bytes(int $length): int
{
    return string_bytes(0) + $length;
}

/**
 * Notes the stack of the caller, who allocates on the same line, or so many lines later. `inner` are functions that it calls.
 */
function note(int $length, array $inner = ['str_repeat'], int $later = 0, ?int $bytes = null): int
{
    $GLOBALS['noted'][] = [$bytes ?? product_bytes($length), $inner, $later, \debug_backtrace(\DEBUG_BACKTRACE_IGNORE_ARGS)];
    return $length;
}

/** Keeps a string. Its caller has allocated it. */
function keep(mixed $value): mixed
{
    return $GLOBALS['kept'][] = $value;
}

/** Functions, files and lines, the innermost first. */
function described(array $inner, int $later, array $trace): array
{
    $stack = \array_map(fn ($function) => [$function, '', 0], $inner);
    foreach ($trace as $at => $call) {
        $caller = $trace[$at + 1] ?? ['function' => '{main}'];
        $function = $caller['function'];
        if (\in_array($function, ['include', 'include_once', 'require', 'require_once', 'eval'])) {
            $function = '{main}';
        }
        if (isset($caller['class'])) {
            $function = \strstr($caller['class'] . "\0", "\0", true) . '::' . $function;
        }
        $line = $call['line'] ?? 0;
        $stack[] = [$function, $call['file'] ?? '', $at == 0 ? $line + $later : $line];
    }
    return $stack;
}

// Functions.

function inner(int $length): void
{
    keep(\str_repeat('x', note($length)));
}

function middle(int $length): void
{
    $unused = \strlen('a');
    inner($length + 1);
}

function outer(): void
{
    middle(60_000);
    inner(
        60_100,
    );
    keep(
        \str_repeat(
            'x', note(60_200, ['str_repeat'], -1)));
}

function recursive(int $depth): void
{
    if ($depth == 0) {
        keep(\str_repeat('x', note(61_000)));
    } else {
        recursive($depth - 1);
    }
}

function with_default(string $value = 'a', int ...$others): void
{
    keep(\str_repeat($value, note(61_100 + \count($others))));
}

function &by_reference(array &$values): array
{
    $values[] = \str_repeat('x', note(61_200));
    return $values;
}

function functions(): void
{
    outer();
    recursive(200);
    with_default();
    with_default('b', 1, 2, 3);
    with_default(...['c', 4, 5]);
    $values = [];
    $again = &by_reference($values);
    keep($values);
}

// Instructions that allocate themselves.

function strings(): void
{
    $big = keep(\str_repeat('x', note(62_000)));
    keep($big . \str_repeat('y', note(100, [], 0, string_bytes(62_100))));
    $note = __NAMESPACE__ . '\note';
    keep("a {$big} {$note(12_345, [], 0, string_bytes(62_008))}");
    keep(\strrev($big . (note(62_000, [], 0, string_bytes(62_001)) && note(62_000, ['strrev'], 0, string_bytes(62_001)) ? 'z' : '')));
    keep(\str_pad('a', note(62_300, ['str_pad'], 0, string_bytes(62_299) + 1)));
    keep(\implode(',', [$big, $big, note(12_345, ['implode'], 0, string_bytes(124_005) + 2)]));
    keep(\strtoupper(\substr($big, note(1, ['strtoupper'], 0, string_bytes(62_000)) - 1)));
    keep(\call_user_func('str_repeat', 'x', note(62_400)));
    keep(\call_user_func_array('str_repeat', ['x', note(62_500)]));
    $repeat = 'str_repeat';
    keep($repeat('x', note(62_600)));
    $callable = \str_repeat(...);
    keep($callable('x', note(62_700)));
    keep(\array_map('str_repeat', ['x', 'y'], [note(62_800, ['str_repeat', 'array_map']), note(62_900, ['str_repeat', 'array_map'])]));
    $bytes = \PHP_VERSION_ID >= 80200 ? 16 : 32;
    keep(\array_fill(0, note(8192, ['array_fill'], 0, 8192 * $bytes + 8), 1));
}

// Methods.

trait Shared
{
    public function of_trait(): void
    {
        keep(\str_repeat('x', note(63_000)));
    }
}

abstract class Base implements \ArrayAccess, \IteratorAggregate, \Countable, \JsonSerializable
{
    use Shared;

    public function __construct(protected int $length)
    {
        keep(\str_repeat('x', note($length)));
    }

    abstract public function own(): void;

    public function inherited(): void
    {
        keep(\str_repeat('x', note($this->length + 1)));
        $this->own();
        self::of_class();
    }

    public static function of_class(): void
    {
        keep(\str_repeat('x', note(63_100)));
        static::late();
    }

    public static function late(): void
    {
        keep(\str_repeat('x', note(63_200)));
    }

    public function offsetExists(mixed $offset): bool
    {
        keep(\str_repeat('x', note(63_300)));
        return true;
    }

    public function offsetGet(mixed $offset): mixed
    {
        return keep(\str_repeat('x', note(63_400)));
    }

    public function offsetSet(mixed $offset, mixed $value): void
    {
        keep(\str_repeat('x', note(63_500)));
    }

    public function offsetUnset(mixed $offset): void
    {
        keep(\str_repeat('x', note(63_600)));
    }

    public function getIterator(): \Iterator
    {
        keep(\str_repeat('x', note(63_700)));
        yield 1;
        keep(\str_repeat('x', note(63_710)));
    }

    public function count(): int
    {
        keep(\str_repeat('x', note(63_800)));
        return 1;
    }

    public function jsonSerialize(): mixed
    {
        keep(\str_repeat('x', note(63_900)));
        return 1;
    }
}

class Derived extends Base
{
    public function own(): void
    {
        keep(\str_repeat('x', note(64_000)));
    }

    public static function late(): void
    {
        parent::late();
        keep(\str_repeat('x', note(64_100)));
    }

    public function __get(string $name): mixed
    {
        return keep(\str_repeat('x', note(64_200)));
    }

    public function __set(string $name, mixed $value): void
    {
        keep(\str_repeat('x', note(64_300)));
    }

    public function __isset(string $name): bool
    {
        return keep(\str_repeat('x', note(64_400))) != '';
    }

    public function __call(string $name, array $arguments): mixed
    {
        return keep(\str_repeat('x', note(64_500)));
    }

    public static function __callStatic(string $name, array $arguments): mixed
    {
        return keep(\str_repeat('x', note(64_600)));
    }

    public function __toString(): string
    {
        return keep(\str_repeat('x', note(64_700)));
    }

    public function __invoke(mixed $value): mixed
    {
        keep(\str_repeat('x', note(64_800)));
        return $value;
    }

    public function __clone()
    {
        keep(\str_repeat('x', note(64_900)));
    }

    public function __serialize(): array
    {
        keep(\str_repeat('x', note(65_000)));
        return [];
    }

    public function __unserialize(array $data): void
    {
        keep(\str_repeat('x', note(65_100)));
    }
}

class Ending
{
    public ?Ending $other = null;

    public function __construct(private int $length)
    {
    }

    public function __destruct()
    {
        keep(\str_repeat('x', note($this->length)));
    }
}

enum Suit
{
    case Hearts;

    public function color(): string
    {
        return keep(\str_repeat('x', note(65_200)));
    }
}

function ends_at_return(): int
{
    $ending = new Ending(66_000);
    return 1;
}

function methods(): void
{
    $derived = new Derived(65_500);
    $derived->inherited();
    $derived->of_trait();
    Derived::of_class();
    isset($derived['a']);
    $derived['a'];
    $derived['a'] = 1;
    unset($derived['a']);
    foreach ($derived as $value) {
        keep(\str_repeat('x', note(65_600)));
    }
    \count($derived);
    \json_encode($derived);
    $derived->absent;
    $derived->absent = 1;
    isset($derived->absent);
    $derived->undefined(1);
    Derived::undefined(1);
    (string) $derived;
    $derived(1);
    \array_map($derived, [1]);
    $copy = clone $derived;
    \unserialize(\serialize($derived));
    Suit::Hearts->color();
    $anonymous = new class (65_700) extends Derived {
        public function own(): void
        {
            parent::own();
            keep(\str_repeat('x', note(65_800)));
        }
    };
    $anonymous->own();
    (new \ReflectionMethod($derived, 'own'))->invoke($derived);
    \call_user_func([$derived, 'own']);
    \call_user_func([Derived::class, 'late']);
    \call_user_func('Demo\Derived::late');
    ends_at_return();
    $ending = new Ending(66_100);
    $ending = null;
    $ending = new Ending(66_200);
    unset($ending);
    $first = new Ending(66_300);
    $first->other = new Ending(66_400);
    $first->other->other = $first;
    $first = null;
    \gc_collect_cycles();
}

// Closures and callbacks.

function closures(): void
{
    $closure = function (int $length) {
        return keep(\str_repeat('x', note($length)));
    };
    $closure(67_000);
    $arrow = fn (int $length) => keep(\str_repeat('x', note($length)));
    $arrow(67_100);
    $static = static fn () => $arrow(67_200);
    $static();
    \Closure::bind(function () {
        keep(\str_repeat('x', note($this->length)));
    }, new Derived(67_300), Derived::class)();
    (fn () => inner(67_400))->call(new Derived(67_500));
    $nested = fn () => fn () => function () {
        keep(\str_repeat('x', note(67_600)));
    };
    $nested()()();
    $callable = inner(...);
    $callable(67_700);
    $method = Derived::late(...);
    $method();
}

function callbacks(): void
{
    \array_map(function ($length) {
        keep(\str_repeat('x', note($length)));
    }, [68_000, 68_001]);
    $values = [3, 1, 2];
    \usort($values, function ($left, $right) {
        keep(\str_repeat('x', note(68_100)));
        return $left <=> $right;
    });
    \array_walk($values, fn ($value) => inner(68_200 + $value));
    \array_filter($values, fn ($value) => keep(\str_repeat('x', note(68_300))));
    \array_reduce($values, fn ($carry, $value) => inner(68_400));
    \preg_replace_callback('/a/', fn ($match) => keep(\str_repeat('x', note(68_500))) ? 'b' : '', 'aba');
    \iterator_apply($iterator = new \ArrayIterator([1, 2]), function () use (&$iterator) {
        keep(\str_repeat('x', note(68_600)));
        return true;
    });
    \call_user_func(fn () => inner(68_700));
    \call_user_func_array(__NAMESPACE__ . '\inner', [68_800]);
    call_user_func('array_map', __NAMESPACE__ . '\inner', [68_900]);
    \array_map(fn ($inner) => \array_map(fn ($length) => inner($length), $inner), [[69_000]]);
    \ob_start(function ($text) {
        keep(\str_repeat('x', note(69_100)));
        return '';
    });
    echo 'a';
    \ob_end_clean();
    \set_error_handler(function () {
        keep(\str_repeat('x', note(69_200)));
        return true;
    });
    $undefined . '';
    \restore_error_handler();
}

// Generators.

function lengths(int $from): \Generator
{
    keep(\str_repeat('x', note($from)));
    $sent = yield $from;
    keep(\str_repeat('x', note($from + 1)));
    yield $from + 1;
    try {
        yield $from + 2;
    } catch (\Exception $exception) {
        keep(\str_repeat('x', note($from + 3)));
    } finally {
        keep(\str_repeat('x', note($from + 4)));
    }
    return 1;
}

function delegating(int $depth): \Generator
{
    if ($depth == 0) {
        keep(\str_repeat('x', note(70_100)));
        yield 1;
        keep(\str_repeat('x', note(70_200)));
        yield from lengths(70_300);
    } else {
        yield from delegating($depth - 1);
        yield from [1, 2];
        keep(\str_repeat('x', note(70_400 + $depth)));
    }
}

function generators(): void
{
    foreach (lengths(70_000) as $length) {
        inner($length + 10);
    }
    $generator = lengths(70_500);
    $generator->current();
    $generator->send(1);
    $generator->next();
    $generator->throw(new \Exception());
    $unfinished = lengths(70_600);
    $unfinished->next();
    $unfinished->next();
    unset($unfinished);
    foreach ([1, 2, 3, 40] as $depth) {
        foreach (delegating($depth) as $value) {
        }
    }
    \iterator_to_array(delegating(2), false);
    keep([...delegating(1)]);
    $expression = (function () {
        keep(yield \str_repeat('x', note(70_700)));
    })();
    foreach ($expression as $value) {
        keep($value);
    }
}

// Fibers.

function fibers(): void
{
    $fiber = new \Fiber(function (int $length): int {
        inner($length);
        $next = \Fiber::suspend(1);
        keep(\str_repeat('x', note($next)));
        $nested = new \Fiber(fn () => inner(71_000));
        $nested->start();
        foreach (delegating(1) as $value) {
            \Fiber::suspend($value);
        }
        return 1;
    });
    $fiber->start(71_100);
    $fiber->resume(71_200);
    while (!$fiber->isTerminated()) {
        (fn () => $fiber->resume(71_300))();
    }
}

// Exceptions.

function throws(int $depth): void
{
    $ending = new Ending(72_000 + $depth);
    if ($depth == 0) {
        throw new \RuntimeException(keep(\str_repeat('x', note(72_100))));
    }
    throws($depth - 1);
}

function exceptions(): void
{
    try {
        throws(3);
    } catch (\RuntimeException $exception) {
        keep(\str_repeat('x', note(72_200)));
    } finally {
        keep(\str_repeat('x', note(72_300)));
    }
    try {
        try {
            throws(1);
        } finally {
            keep(\str_repeat('x', note(72_400)));
        }
    } catch (\Exception $exception) {
        inner(72_500);
    }
    try {
        \array_map(fn () => throws(0), [1]);
    } catch (\Exception) {
        keep(\str_repeat('x', note(72_600)));
    }
    try {
        \strlen(...[[]]);
    } catch (\TypeError $error) {
        keep(\str_repeat('x', note(72_700)));
    }
}

// Files.

function write(string $name, string $code): string
{
    $path = $GLOBALS['folder'] . '/' . $name;
    \file_put_contents($path, "<?php\nnamespace Demo;\n" . $code);
    return $path;
}

function files(): void
{
    static $round = 0;
    $round++;
    include write('included.php', <<<'CODE'
        keep(\str_repeat('x', note(73_000)));

        function included(): void
        {
            keep(\str_repeat('x', note(73_100)));
        }

        included();
        CODE);
    $path = write('required.php', "inner(73_200);\nreturn fn () => keep(\\str_repeat('x', note(73_300)));\n");
    (require $path)();
    (fn () => require $path)();
    eval("namespace Demo;\ninner(73_400);\n\nkeep(\\str_repeat('x', note(73_500)));");
    \spl_autoload_register($loader = function (string $class) {
        keep(\str_repeat('x', note(73_600)));
        $name = \substr($class, \strlen(__NAMESPACE__) + 1);
        require write($name . '.php', "keep(\\str_repeat('x', note(73_700)));\n\nclass $name {}\n");
    });
    $class = __NAMESPACE__ . '\Loaded' . $round;
    new $class();
    \class_exists(__NAMESPACE__ . '\Asked' . $round);
    \spl_autoload_unregister($loader);
    // Calls whose frames need a new page of PHP's stack: there, nothing can throw, so PHP must store the line because it allocates.
    $variables = \implode(' ', \array_map(fn ($number) => "\$v$number = 1;", \range(0, 1000)));
    require write("wide.php", <<<CODE
        function wide(int \$depth): void
        {
            $variables
            \\strlen("a\$depth");
            if (\$depth > 0) {
                wide(\$depth - 1);
            }
        }
        CODE);
    wide(50);
}

function go(): void
{
    functions();
    strings();
    methods();
    closures();
    callbacks();
    generators();
    fibers();
    exceptions();
    files();
}

function printed(array $noted): void
{
    foreach ($noted as [$bytes, $inner, $later, $trace]) {
        echo \json_encode(['bytes' => $bytes, 'stack' => described($inner, $later, $trace)], \JSON_UNESCAPED_SLASHES), "\n";
    }
}

if (isset($argv[2])) {
    // Once, without a tester.
    go();
    keep(\str_repeat('x', note(74_000)));
    printed($noted);
    exit;
}
echo "ready\n";
while (($line = \fgets(\STDIN)) !== false) {
    switch (\trim($line)) {
        case 'go':
            go();
            keep(\str_repeat('x', note(74_000)));
            break;
        case 'describe':
            printed($noted);
            break;
    }
    echo "done\n";
}
