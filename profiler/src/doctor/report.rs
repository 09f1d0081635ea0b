//! Text and JSON output of a diagnosis. The text is for people and may change; programs read the JSON.

use std::io;

use anstyle::Style;
use heapbpf_ledger::model::ScopeKind;
use heapbpf_linux::feature::Support;
use heapbpf_report::page::Column::{self, Left, Right};
use heapbpf_report::page::{BAD, GOOD, HEADING, PLAIN, Page, table_lines};
use heapbpf_report::plain_json;
use heapbpf_report::text::printable;

use super::json::Doctor;
use super::{Costs, Diagnosis, EnginesForecast, Refusal, Target, Trial};
use crate::probe::cost::expected_ns;
use crate::probe::place::Class;
use crate::probe::plan::PlannedHook;
use crate::session::ScopeForecast;

pub(crate) fn write_json(diagnosis: &Diagnosis, out: &mut dyn io::Write) -> io::Result<()> {
    plain_json::write_line(&Doctor::new(diagnosis), out)
}

pub(crate) fn text(diagnosis: &Diagnosis, colour: bool) -> String {
    let mut page = DiagnosisPage(Page::new(None, colour));
    page.0.line(
        HEADING,
        &format!("heapbpf {} on Linux {} ({})", env!("CARGO_PKG_VERSION"), diagnosis.kernel, std::env::consts::ARCH),
    );
    page.environments(diagnosis);
    page.trials(&diagnosis.trials);
    page.limits(diagnosis);
    page.costs(diagnosis.costs.as_ref());
    if let Some(target) = &diagnosis.target {
        page.target(target, diagnosis.costs.as_ref());
    }
    page.lacking(diagnosis);
    page.verdict(diagnosis);
    page.0.text
}

/// The page of a diagnosis.
struct DiagnosisPage(Page);

impl DiagnosisPage {
    fn heading(&mut self, heading: &str) {
        self.0.gap();
        self.0.line(HEADING, heading);
    }

    fn styled_table(&mut self, columns: &[Column], rows: Vec<(Style, Vec<String>)>) {
        let (styles, rows): (Vec<Style>, Vec<Vec<String>>) = rows.into_iter().unzip();
        let lines = table_lines(columns, rows, None);
        // The first line has the headings, if columns have any.
        let headings = lines.len().saturating_sub(styles.len());
        let styles = std::iter::repeat_n(PLAIN, headings).chain(styles);
        for (style, line) in styles.zip(lines) {
            self.0.line(style, &format!("  {line}"));
        }
    }

    fn environments(&mut self, diagnosis: &Diagnosis) {
        if diagnosis.environments.is_empty() {
            return;
        }
        self.heading("where heapbpf runs");
        let rows = diagnosis.environments.iter().map(|environment| {
            (PLAIN, vec![environment.name.clone(), printable(&environment.evidence.join("; ")).into_owned()])
        });
        self.styled_table(&[Left(""); 2], rows.collect());
    }

    fn trials(&mut self, trials: &[Trial]) {
        self.heading("what this kernel and this user allow");
        let row = |trial: &Trial| {
            let (style, answer, reason) = match &trial.support {
                Support::Yes => (GOOD, "yes", None),
                Support::No(reason) => (if trial.prevents() { BAD } else { PLAIN }, "no", Some(reason)),
                Support::Unknown(reason) => (PLAIN, "unknown", Some(reason)),
            };
            let remarks: Vec<&str> = reason.into_iter().chain(&trial.remark).map(String::as_str).collect();
            // The verifier's reasons have several lines.
            let remarks = printable(&remarks.join("; ")).into_owned();
            let needed = if trial.needed { "" } else { "not needed" };
            (style, vec![trial.name().to_owned(), answer.to_owned(), needed.to_owned(), remarks])
        };
        self.styled_table(&[Left(""); 4], trials.iter().map(row).collect());
    }

    fn limits(&mut self, diagnosis: &Diagnosis) {
        self.heading("limits");
        let unreadable = || "not readable".to_owned();
        let rows = diagnosis.limits.iter().map(|limit| {
            let value = limit.value.as_deref().map_or_else(unreadable, |value| printable(value).into_owned());
            (PLAIN, vec![limit.name.to_owned(), value, limit.meaning.to_owned()])
        });
        self.styled_table(&[Left(""), Right(""), Left("")], rows.collect());
    }

    fn costs(&mut self, costs: Option<&Costs>) {
        self.heading("what a probe costs here, per call");
        let Some(costs) = costs else {
            return self.0.line(PLAIN, "  not measured: no probe could be attached");
        };
        let row = |name: &str, entry: f64, both: f64| (PLAIN, vec![name.to_owned(), nanos(entry), nanos(both)]);
        let columns = [Left("probed instruction"), Right("entry (free)"), Right("and return (malloc)")];
        let rows = vec![
            row("emulated by the kernel", costs.emulated_ns, costs.emulated_with_return_ns),
            row("single-stepped", costs.single_stepped_ns, costs.single_stepped_with_return_ns),
        ];
        self.styled_table(&columns, rows);
    }

    fn target(&mut self, target: &Target, costs: Option<&Costs>) {
        self.heading(&format!("process {} ({})", target.pid, printable(&target.comm)));
        match &target.hooks {
            Ok(hooks) => {
                let [function, instruction, probe, module] = ["function", "instruction", "probe", "module"].map(Left);
                let columns = [function, Right("offset"), instruction, probe, Right("per call"), module];
                self.styled_table(&columns, hooks.iter().map(|hook| (PLAIN, row(hook, costs))).collect());
            }
            Err(error) => self.0.line(BAD, &format!("  {}", printable(error))),
        }
        if let Some(scope) = &target.scope {
            self.forecast_scope(scope);
        }
        if let Some(engines) = &target.engines {
            self.engines(engines);
        }
    }

    fn engines(&mut self, engines: &EnginesForecast) {
        let rate = engines.allocations_per_second;
        self.0.gap();
        self.0.line(PLAIN, &format!("  allocations per second of CPU time: ≈ {rate:.0} (counted for 0.2 s)"));
        // The counted time without the probes is then too small to be a divisor.
        let trap = if engines.trap > 10.0 { "more than 10".to_owned() } else { format!("≈ {:.2}", engines.trap) };
        self.0.line(PLAIN, &format!("  CPU time with `--engine trap`: {trap} times"));
        let inline = match engines.inline {
            Some(times) => format!("≈ {times:.2} times ({} pointers lead to its functions)", engines.pointers),
            None => "as with `trap`: no pointer of a global offset table leads to its functions".to_owned(),
        };
        self.0.line(PLAIN, &format!("  CPU time with `--engine inline`: {inline}"));
    }

    fn forecast_scope(&mut self, scope: &ScopeForecast) {
        let foreign = scope.foreign_probes.map_or_else(|| "unknown".to_owned(), |probes| probes.to_string());
        let style = if scope.foreign_probes.is_some_and(|probes| probes > 0) { BAD } else { PLAIN };
        self.0.gap();
        self.0.line(PLAIN, &format!("  other processes that map these files: {}", scope.other_processes));
        self.0.line(style, &format!("  probes of other tools on these functions: {foreign}"));
        for (selection, choice) in [("this target alone", &scope.one_target), ("`--all`", &scope.all)] {
            let kind = match choice.kind {
                ScopeKind::Process => "probes of single processes",
                ScopeKind::Inode => "probes shared by all processes that map these files",
            };
            self.0.line(PLAIN, &format!("  with {selection}: {kind} ({})", printable(&choice.reason)));
        }
    }

    /// Adds features that are missing, but not needed.
    fn lacking(&mut self, diagnosis: &Diagnosis) {
        let works = diagnosis.works();
        let explained = |trial: &&Trial| diagnosis.explanation(trial).is_none();
        let trials: Vec<&Trial> = diagnosis.trials.iter().filter(explained).collect();
        let lacking = trials.iter().filter_map(|trial| Some((trial, trial.consequence()?, trial.remedy()?)));
        let refusals: Vec<&Refusal> =
            diagnosis.refusals.iter().filter(|refusal| !diagnosis.is_decisive(refusal)).collect();
        let lacking: Vec<_> = lacking.collect();
        // Without the needed features, the others do not matter yet.
        if !works || lacking.is_empty() && refusals.is_empty() {
            return;
        }
        self.heading("what is missing, but not needed");
        for refusal in refusals {
            self.refusal(refusal, consequence(refusal, diagnosis), false);
        }
        for (trial, consequence, remedy) in lacking {
            self.0.line(PLAIN, &format!("  {}: {consequence}; {remedy}", trial.name()));
        }
    }

    fn refusal(&mut self, refusal: &Refusal, consequence: Option<&str>, repeats_remedy: bool) {
        self.0.line(PLAIN, &format!("  {}", printable(&refusal.reason)));
        self.0.line(PLAIN, &format!("    feature:  {}", refusal.feature));
        if let Some(consequence) = consequence {
            self.0.line(PLAIN, &format!("    without:  {consequence}"));
        }
        for (number, evidence) in refusal.evidence.iter().enumerate() {
            let title = if number == 0 { "evidence:" } else { "" };
            self.0.line(PLAIN, &format!("    {title:9} {}", printable(evidence)));
        }
        let remedy = if repeats_remedy { "as before".into() } else { printable(&refusal.remedy) };
        self.0.line(PLAIN, &format!("    remedy:   {remedy}"));
    }

    fn verdict(&mut self, diagnosis: &Diagnosis) {
        self.0.gap();
        if diagnosis.works() {
            return self.0.line(GOOD, "profiling works here");
        }
        self.0.line(BAD, "profiling does not work here");
        let mut last_remedy = "";
        for refusal in diagnosis.refusals.iter().filter(|refusal| diagnosis.is_decisive(refusal)) {
            self.refusal(refusal, None, refusal.remedy == last_remedy);
            last_remedy = &refusal.remedy;
        }
        for trial in diagnosis.trials.iter().filter(|trial| trial.prevents()) {
            if let Some(remedy) = trial.remedy().filter(|_| diagnosis.explanation(trial).is_none()) {
                self.0.line(PLAIN, &format!("  {}: {remedy}", trial.name()));
            }
        }
        if let Some(Target { pid, hooks: Err(_), .. }) = &diagnosis.target {
            self.0.line(PLAIN, &format!("  process {pid}: see above"));
        }
    }
}

/// Consequence of the first trial that fails for this reason.
fn consequence(refusal: &Refusal, diagnosis: &Diagnosis) -> Option<&'static str> {
    let mut failed = diagnosis.trials.iter().filter(|trial| refusal.explains.contains(&trial.kind));
    failed.find_map(Trial::consequence)
}

fn row(hook: &PlannedHook, costs: Option<&Costs>) -> Vec<String> {
    let spec = &hook.hook.spec;
    let names: Vec<&str> = std::iter::once(spec.function).chain(hook.hook.aliases.iter().copied()).collect();
    let offset = format!("{:#x}", hook.offset().0);
    let module = printable(&hook.hook.path).into_owned();
    let (instruction, class, cost) = match &hook.placement {
        Ok(placement) => (
            placement.instruction.clone(),
            match placement.class {
                Class::Emulated => "emulated",
                Class::SingleStepped => "single-stepped",
            },
            costs.map_or_else(String::new, |costs| nanos(expected_ns(costs, placement.class, spec.shape))),
        ),
        Err(error) => (printable(&error.to_string()).into_owned(), "impossible", String::new()),
    };
    vec![names.join(", "), offset, instruction, class.to_owned(), cost, module]
}

/// Rounds to the precision of repeated measurements.
fn nanos(nanos: f64) -> String {
    if nanos < 10_000.0 {
        format!("{:.0} ns", (nanos / 10.0).round() * 10.0)
    } else {
        format!("{:.0} µs", nanos / 1000.0)
    }
}
