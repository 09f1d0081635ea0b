//! Measures the cost of a probe on this machine: heapbpf starts itself again, probes that process, and has it call the
//! probed functions many times. The real programs run, on their shortest paths: the free of an untracked block, and an
//! allocation that is not sampled.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::{HeapId, Pid};
use heapbpf_linux::clock;
use heapbpf_linux::feature::Spot;
use heapbpf_linux::proc::maps::{self, Mapping};
use profiler_common::arch::ARGUMENTS;
use profiler_common::hook::{CallShape, HookCookie, ProbeScope, Site};
use profiler_common::sampling::SamplingRate;
use thiserror::Error;

use super::attach::{AttachError, Probe, addresses, attach};
use super::place::Class;
use crate::bpf::load::{Kernel, LoadError};
use crate::keeper::Keeper;
pub(crate) use heapbpf_ledger::model::ProbeCosts as Costs;

/// The hidden command that runs heapbpf as the probed process.
pub(crate) const TARGET_COMMAND: &str = "doctor-target";
/// Number of calls per measurement, and of measurements of each function, whose median is used.
const CALLS: u32 = 400;
const ROUNDS: usize = 9;

const CALLS_MAX: u32 = 10_000_000;

/// Returns the nanoseconds that one call of a hook of this shape is expected to cost, by what was measured.
pub(crate) fn expected_ns(costs: &Costs, class: Class, shape: CallShape) -> f64 {
    match (class, shape.allocates()) {
        (Class::Emulated, false) => costs.emulated_ns,
        (Class::SingleStepped, false) => costs.single_stepped_ns,
        (Class::Emulated, true) => costs.emulated_with_return_ns,
        (Class::SingleStepped, true) => costs.single_stepped_with_return_ns,
    }
}

#[derive(Debug, Error)]
pub(crate) enum CostError {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("heapbpf cannot run itself to be probed: {0}")]
    Target(#[from] std::io::Error),
}

/// Measures the cost of probes, which takes about a third of a second. Afterwards the rate of the first heap is 0.
pub(crate) fn calibrate(kernel: &mut Kernel, keeper: &Keeper) -> Result<Costs, CostError> {
    let subject = Subject::find().map_err(CostError::Refused)?;
    measure(kernel, keeper, &subject)
}

pub(crate) fn measure(kernel: &mut Kernel, keeper: &Keeper, subject: &Subject) -> Result<Costs, CostError> {
    kernel.set_rate(HeapId(0), SamplingRate::STOPPED)?;
    let mut target = Target::start()?;
    let unprobed = target.times()?;
    let probes = Spot::ALL.map(|spot| Probe { offset: subject.offset_of(spot), cookie: cookie(spot) });
    if !kernel.has_cookies() {
        let mapped = maps::executable_mappings(target.pid()).map_err(|error| CostError::Refused(error.to_string()))?;
        let own =
            |mapping: &&Mapping| (mapping.device, mapping.inode) == (subject.mapping.device, subject.mapping.inode);
        let addresses: Vec<_> = addresses(&probes, mapped.iter().filter(own)).collect();
        kernel.set_probes(target.pid(), &addresses)?;
    }
    let attached = attach(keeper, kernel, &subject.file, &probes, Some(target.pid()))?;
    let probed = target.times();
    drop(target);
    drop(attached);
    let probed = probed?;
    let cost = |index: usize| (probed[index] - unprobed[index]).max(0.0);
    Ok(Costs {
        emulated_ns: cost(0),
        emulated_with_return_ns: cost(1),
        single_stepped_ns: cost(2),
        single_stepped_with_return_ns: cost(3),
    })
}

/// Cookie of the probe on a function. The first argument is the block or its size. The heap is the one whose sampling is stopped.
fn cookie(spot: Spot) -> HookCookie {
    HookCookie {
        shape: match spot {
            Spot::Emulated | Spot::Stepped => CallShape::Free,
            Spot::EmulatedReturning | Spot::SteppedReturning => CallShape::Alloc,
        },
        size: ARGUMENTS[0],
        count: None,
        pointer: Some(ARGUMENTS[0]),
        page_rounded: false,
        delegates: false,
        delegates_null: false,
        has_nested_callers: false,
        may_throw: false,
        frees_on_failure: false,
        scope: ProbeScope::Any,
        site: Site::Function,
        heap: 0,
        hook: 0,
    }
}

/// This process's program file, even if it was renamed or deleted.
pub(crate) const PROGRAM: &str = "/proc/self/exe";

pub(crate) struct Subject {
    file: File,
    mapping: Mapping,
}

impl Subject {
    pub(crate) fn find() -> Result<Self, String> {
        let address = TargetAddr(Spot::Emulated.address());
        let mappings = maps::executable_mappings(Pid(std::process::id())).map_err(|error| error.to_string())?;
        let mapping = mappings.into_iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
        let mapping = mapping.ok_or("heapbpf's own code is not mapped where expected")?;
        let file = File::open(Path::new(PROGRAM)).map_err(|error| format!("cannot open `{PROGRAM}`: {error}"))?;
        Ok(Self { file, mapping })
    }

    pub(crate) fn offset_of(&self, spot: Spot) -> FileOffset {
        FileOffset(spot.address().wrapping_sub(self.mapping.start.0).wrapping_add(self.mapping.offset.0))
    }

    /// File offset of an instruction that can be probed.
    pub(crate) fn offset(&self) -> u64 {
        self.offset_of(Spot::Emulated).0
    }
}

struct Target {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Target {
    fn start() -> std::io::Result<Self> {
        let mut command = Command::new(PROGRAM);
        command.arg0("heapbpf").arg(TARGET_COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(std::io::Error::other("its input and output are not pipes"));
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Median nanoseconds of a call of each function. Rounds alternate between functions: other load affects all.
    fn times(&mut self) -> std::io::Result<[f64; 4]> {
        let mut times: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            for (spot, times) in times.iter_mut().enumerate() {
                times.push(self.time(spot)?);
            }
        }
        Ok(times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        }))
    }

    fn time(&mut self, spot: usize) -> std::io::Result<f64> {
        writeln!(self.input, "{spot} {CALLS}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let nanos: u32 = line.trim().parse().map_err(|_| std::io::Error::other("it exited instead of answering"))?;
        Ok(f64::from(nanos) / f64::from(CALLS))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the probed process: for each line with the number of a function and a number of calls, makes these calls and answers with
/// their CPU time in nanoseconds, which excludes other load. Returns at the end of its input.
pub(crate) fn serve(input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    for line in input.lines() {
        let line = line?;
        let request = line.split_once(' ').and_then(|(spot, calls)| {
            let spot = Spot::ALL.get(spot.parse::<usize>().ok()?)?;
            Some((spot, calls.parse::<u32>().ok()?))
        });
        let (spot, calls) = request.ok_or_else(|| std::io::Error::other("a line is not `FUNCTION CALLS`"))?;
        let began_ns = clock::cpu_ns();
        spot.call(calls.min(CALLS_MAX));
        writeln!(output, "{}", u32::try_from(clock::cpu_ns().saturating_sub(began_ns)).unwrap_or(u32::MAX))?;
        output.flush()?;
    }
    Ok(())
}
