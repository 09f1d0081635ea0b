//! The cost of a function of Python and other runtimes in a sampled stack, beside that of a native function in the same process.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use heapbpf_tests::interpreters::{JAVA_HOME, NODE_VERSIONS, node_folder};
use heapbpf_tests::report::{Callsite, Report};
use tempfile::TempDir;

use super::calls::{runs, statistics};
use super::figures::{self, Spread, alternate, ratios};
use super::tool::{self, Setup, Tool};
use crate::process::{Program, bound};
use crate::{command, interpreters, packages, viewers};

/// Stacks of so many functions, each another one. The first has the fixed costs.
const DEPTHS: [u32; 2] = [5, 205];
const CALLS: u32 = 3000;
const SAMPLED: &[&str] = &["--interval", "1", "--on-overload", "drop"];
/// The programs at the entry and the return of a sampled allocation, and at its free.
const RUNS_PER_ALLOCATION: u64 = 3;

// Programs that execute lines `DEPTH COUNT`: they allocate COUNT blocks below DEPTH functions.
const IN_PYTHON: &str = "import sys\nsys.setrecursionlimit(10000)\ndef allocate(depth, count):\n for _ in range(count): bytearray(2000)\n\
    functions = {'f0': allocate}\nfor i in range(1, 256): exec(f'def f{i}(depth, count): return f{i - 1}(depth, count)', functions)\n\
    print('ready', flush=True)\nfor line in sys.stdin:\n depth, count = map(int, line.split())\n functions[f'f{depth}'](depth, count)\n \
    print('done', flush=True)\n";
/// Node.js copies a long name of an environment variable.
const IN_JAVASCRIPT: &str = "const name = 'x'.repeat(2000), all = [count => { for (let i = 0; i < count; i++) process.env[name]; }];\n\
    for (let i = 1; i < 256; i++) all.push(new Function('inner', `return function f${i}(count) { return inner(count) + 1; }`)(all[i - 1]));\n\
    console.log('ready');\n\
    require('readline').createInterface({ input: process.stdin }).on('line', line => {\n \
    const [depth, count] = line.split(' ').map(Number);\n all[depth](count);\n console.log('done');\n});\n";
const IN_PHP: &str = "function f0($count) { for ($i = 0; $i < $count; $i++) str_repeat('x', 2000); return $count; }\n\
    for ($i = 1; $i < 256; $i++) eval(\"function f$i(\\$count) { return f\" . ($i - 1) . '($count) + 1; }');\n\
    echo \"ready\\n\";\nwhile ($line = fgets(STDIN)) { [$depth, $count] = explode(' ', $line); \"f$depth\"((int) $count); echo \"done\\n\"; }\n";
const IN_RUBY: &str = "$stdout.sync = true\ndef f0(count) = count.times { 'x' * 2000 }\n\
    (1..255).each { |i| eval(\"def f#{i}(count) = f#{i - 1}(count) + 1\") }\n\
    puts 'ready'\nwhile (line = gets)\n depth, count = line.split.map(&:to_i)\n send(\"f#{depth}\", count)\n puts 'done'\nend\n";

fn in_java() -> String {
    let functions: String =
        (1..256).map(|i| format!("static int f{i}(int count) {{ return f{}(count) + 1; }}\n", i - 1)).collect();
    format!(
        "import java.util.Scanner;\nimport sun.misc.Unsafe;\nclass Functions {{\nstatic Unsafe unsafe;\n\
         static int f0(int count) {{ for (int i = 0; i < count; i++) unsafe.freeMemory(unsafe.allocateMemory(2000)); return count; }}\n\
         {functions}\
         public static void main(String[] arguments) throws Exception {{\nvar field = Unsafe.class.getDeclaredField(\"theUnsafe\");\n\
         field.setAccessible(true);\nunsafe = (Unsafe) field.get(null);\nvar input = new Scanner(System.in);\n\
         System.out.println(\"ready\");\nwhile (input.hasNextInt()) {{ int depth = input.nextInt(), count = input.nextInt();\n\
         if (depth == {}) f{0}(count); else f{}(count);\nSystem.out.println(\"done\"); }}\n}}\n}}\n",
        DEPTHS[0], DEPTHS[1]
    )
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Runtime {
    /// CPython of this version, in its root directory.
    Python(&'static str),
    /// How functions are executed, and the options for it.
    Java(&'static str, &'static str),
    Javascript(&'static str, &'static str),
    Php,
    Ruby,
}

pub(super) const PYTHON: &[Runtime] =
    &[Runtime::Python("3.9"), Runtime::Python("3.11"), Runtime::Python("3.13"), Runtime::Python("3.14")];

/// Compilers inline nothing, so that each function has a frame.
pub(super) const RUNTIMES: &[Runtime] = &[
    Runtime::Java("interpreted", "-Xint"),
    Runtime::Java("compiled", "-Xcomp -XX:-Inline"),
    Runtime::Javascript("interpreted", "--no-opt --no-maglev --no-sparkplug"),
    Runtime::Javascript("compiled", "--no-opt --no-maglev --always-sparkplug"),
    Runtime::Php,
    Runtime::Ruby,
];

impl Runtime {
    fn name(self) -> Result<String> {
        let asked =
            |program: &str, option: &str, script: &str| command::output(Command::new(program).args([option, script]));
        Ok(match self {
            Self::Python(version) => format!("CPython {version}"),
            Self::Java(how, _) => format!("OpenJDK 21, {how}"),
            Self::Javascript(how, _) => format!("Node.js {}, {how}", NODE_VERSIONS[2]),
            Self::Php => format!("PHP {}", asked("php", "-r", "echo PHP_VERSION;")?.trim()),
            Self::Ruby => format!("CRuby {}", asked("ruby", "-e", "print RUBY_VERSION")?.trim()),
        })
    }
}

/// What is installed and compiled once.
struct Programs<'a> {
    setup: &'a Setup,
    interpreters: PathBuf,
    /// The library that allocates below native functions.
    native: PathBuf,
}

impl<'a> Programs<'a> {
    fn new(setup: &'a Setup, runtimes: &[Runtime]) -> Result<Self> {
        packages::install(packages::VIEWERS)?;
        let Setup { bench, .. } = setup;
        let interpreters = interpreters::install(&bench.repository, &viewers::install(&bench.repository)?)?;
        let native = bench.folder.join("native_stacks.so");
        let source = bench.repository.root.join("xtask/src/bench/native_stacks.c");
        command::compile(
            "gcc",
            "-O1 -g -fPIC -shared -nostdlib -fno-builtin -fno-optimize-sibling-calls",
            &source,
            &native,
        )?;
        if runtimes.iter().any(|runtime| !matches!(runtime, Runtime::Python(_))) {
            packages::install(packages::BENCH_FUNCTIONS)?;
            let java = bench.folder.join("Functions.java");
            fs::write(&java, in_java())?;
            // The last option is for `sun.misc.Unsafe`.
            let options = ["-nowarn", "-source", "17", "-target", "17", "-XDignore.symbol.file"];
            command::run(Command::new("javac").args(options).arg("-d").arg(&bench.folder).arg(&java))?;
        }
        Ok(Self { setup, interpreters, native })
    }

    fn start(&self, runtime: Runtime) -> Result<Started> {
        let root = match runtime {
            Runtime::Python(version) => self.interpreters.join(version),
            _ => PathBuf::from("/"),
        };
        let folder = tempfile::Builder::new().prefix("heapbpf-bench-").tempdir_in(root.join("tmp"))?;
        let library = folder.path().join("native_stacks.so");
        fs::copy(&self.native, &library)?;
        command::run(Command::new("mkfifo").args(FIFOS.map(|name| folder.path().join(name))))?;
        let mut command = self.command(runtime, &root);
        let inside = |path: &Path| Path::new("/").join(path.strip_prefix(&root).unwrap_or(path));
        command.env("NATIVE_STACKS", inside(folder.path())).env("LD_PRELOAD", inside(&library));
        let (program, _) = Program::ready(&mut command)?;
        let orders = File::options().write(true).open(folder.path().join(FIFOS[0]))?;
        let answers = BufReader::new(File::open(folder.path().join(FIFOS[1]))?);
        Ok(Started { program, orders, answers, _folder: folder })
    }

    fn command(&self, runtime: Runtime, root: &Path) -> Command {
        let program = match runtime {
            Runtime::Python(_) => "chroot".into(),
            Runtime::Java(..) => self.interpreters.join("java").join(JAVA_HOME).join("bin/java"),
            Runtime::Javascript(..) => self.interpreters.join(node_folder(NODE_VERSIONS[2])).join("bin/node"),
            Runtime::Php => "php".into(),
            Runtime::Ruby => "ruby".into(),
        };
        let mut command = bound(program);
        match runtime {
            Runtime::Python(version) => command.arg(root).args([&format!("python{version}"), "-c", IN_PYTHON]),
            Runtime::Java(_, options) => {
                command.args(options.split(' ')).arg("-cp").arg(&self.setup.bench.folder).arg("Functions")
            }
            Runtime::Javascript(_, options) => command.args(options.split(' ')).args(["-e", IN_JAVASCRIPT]),
            // Without PHP's own allocator.
            Runtime::Php => command.args(["-r", IN_PHP]).env("USE_ZEND_ALLOC", "0"),
            Runtime::Ruby => command.args(["-e", IN_RUBY]),
        };
        command
    }
}

/// Of the thread that allocates below native functions.
const FIFOS: [&str; 2] = ["orders", "answers"];

struct Started {
    program: Program,
    orders: File,
    answers: BufReader<File>,
    _folder: TempDir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Functions {
    OfRuntime,
    Native,
}

/// Nanoseconds per allocation below as many functions as [`DEPTHS`] has.
#[derive(Clone, Copy, Debug)]
struct Cost([f64; DEPTHS.len()]);

impl Cost {
    fn per_function(self) -> f64 {
        (self.0[1] - self.0[0]) / f64::from(DEPTHS[1] - DEPTHS[0])
    }
}

impl Started {
    fn allocate(&mut self, functions: Functions, depth: u32) -> Result<()> {
        let order = format!("{depth} {CALLS}");
        match functions {
            Functions::OfRuntime => self.program.order(&order),
            Functions::Native => {
                // In one piece: the thread takes what it reads for a line.
                self.orders.write_all(format!("{order}\n").as_bytes())?;
                let mut answer = String::new();
                self.answers.read_line(&mut answer)?;
                ensure!(answer == "done\n", "the native thread answers `{answer}`");
                Ok(())
            }
        }
    }

    fn cost(&mut self, functions: Functions, agent: u32) -> Result<Cost> {
        let mut ns = [0.0; DEPTHS.len()];
        // The first round sends the names of functions.
        for _ in 0..2 {
            for (ns, depth) in ns.iter_mut().zip(DEPTHS) {
                let before = runs(agent)?;
                self.allocate(functions, depth)?;
                let after = runs(agent)?;
                // Runtimes also allocate at times of their own, and free later.
                let allocations = (after.1 - before.1) / RUNS_PER_ALLOCATION;
                ensure!(allocations >= u64::from(CALLS) / 2, "{allocations} allocations instead of {CALLS}");
                *ns = (after.0 - before.0) as f64 / allocations as f64;
            }
        }
        Ok(Cost(ns))
    }
}

/// Costs of functions of the runtime, and of native ones; the former also with the other heapbpf.
struct Measured {
    functions: Cost,
    native: Cost,
    against: Option<Cost>,
}

pub(super) fn measure(setup: &Setup, runtimes: &[Runtime]) -> Result<String> {
    let programs = Programs::new(setup, runtimes)?;
    let _statistics = statistics()?;
    let measured = alternate(setup.bench.rounds, runtimes, |&runtime| {
        let mut target = programs.start(runtime)?;
        let pid = target.program.pid();
        let attached = Tool::Heapbpf(SAMPLED).attach(setup, pid, &[])?;
        let functions = target.cost(Functions::OfRuntime, attached.agent()?)?;
        let native = target.cost(Functions::Native, attached.agent()?)?;
        check(&attached.detach(pid)?.context("heapbpf writes a report")?, runtime)?;
        let against = match setup.against {
            None => None,
            Some(_) => {
                let attached = Tool::Against(SAMPLED).attach(setup, pid, &[])?;
                let cost = target.cost(Functions::OfRuntime, attached.agent()?)?;
                attached.detach(pid)?;
                Some(cost)
            }
        };
        let [own, native_ns] = [functions, native].map(Cost::per_function);
        eprintln!("{runtime:?}: {own:.0} ns per function, {native_ns:.0} ns per native one");
        Ok(Measured { functions, native, against })
    })?;
    let [low, high] = DEPTHS.map(|depth| format!("ns per allocation below {depth} functions"));
    let mut head = vec!["", &low, &high, "**ns per function**, median (extremes)", "ns per native function there"];
    if setup.against.is_some() {
        head.extend(["ns per function, the other heapbpf", "ratio to the other, median (extremes)"]);
    }
    let mut rows = Vec::new();
    for (runtime, rounds) in runtimes.iter().zip(&measured) {
        let values = |value: &dyn Fn(&Measured) -> f64| -> Vec<f64> { rounds.iter().map(value).collect() };
        let spread = |value: &dyn Fn(&Measured) -> f64| format!("{:.0}", Spread::of(values(value)));
        let mut row = vec![
            runtime.name()?,
            spread(&|it| it.functions.0[0]),
            spread(&|it| it.functions.0[1]),
            spread(&|it| it.functions.per_function()),
            spread(&|it| it.native.per_function()),
        ];
        if setup.against.is_some() {
            let others: Vec<f64> = rounds.iter().filter_map(|it| Some(it.against?.per_function())).collect();
            let ratio = ratios(&values(&|it| it.functions.per_function()), &others);
            row.extend([format!("{:.0}", Spread::of(others)), format!("{ratio:.2}")]);
        }
        rows.push(row);
    }
    Ok(figures::table(&head, &rows))
}

/// Fails unless stacks have the functions that the figures are published for.
fn check(report: &Report, runtime: Runtime) -> Result<()> {
    let interpreted =
        |callsite: &Callsite| callsite.stack.iter().filter(|frame| frame.kind.as_deref() != Some("native")).count();
    let deepest = tool::callsites(report).map(interpreted).max().unwrap_or(0);
    ensure!(deepest >= DEPTHS[1] as usize, "{runtime:?}: no stack has more than {deepest} functions of the runtime");
    Ok(())
}
