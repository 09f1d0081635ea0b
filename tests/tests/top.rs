//! `heapbpf top`: keys and screens in a terminal, its restoration, and its output for scripts.

use std::fs;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::kernel::require_root;
use heapbpf_tests::target::Target;
use heapbpf_tests::tmux::Tmux;
use serde_json::Value;

/// Where this program is to panic instead of running the test.
const PANICS: &str = "HEAPBPF_TEST_PANICS";

/// A target with 3 blocks of `Allocate`, and the screen that shows it.
fn start(width: u16, height: u16, options: &str) -> (Target, Tmux) {
    require_root();
    let mut target = Target::start("growth.c");
    let tmux = Tmux::start(width, height);
    let heapbpf = binary();
    let pid = target.pid();
    let options = format!("--pid {pid} --no-inventory --interval 1 --refresh 500ms {options}");
    tmux.enter(&format!("{} top {options}", heapbpf.display()));
    tmux.wait_for("CALLSITE");
    target.work("3 0");
    tmux.wait_for("Allocate (growth.c");
    (target, tmux)
}

/// Row of a callsite: its columns.
#[track_caller]
fn row(screen: &str, function: &str) -> Vec<String> {
    let line = screen.lines().find(|line| line.contains(&format!("{function} (growth.c")));
    let line = line.unwrap_or_else(|| panic!("no `{function}`:\n{screen}"));
    line.split_whitespace().map(str::to_owned).collect()
}

#[track_caller]
fn position(screen: &str, text: &str) -> usize {
    screen.lines().position(|line| line.contains(text)).unwrap_or_else(|| panic!("no `{text}`:\n{screen}"))
}

/// Ends heapbpf with `q`, and fails unless the shell has the screen again.
#[track_caller]
fn quit(tmux: &Tmux) {
    tmux.press(&["q"]);
    let screen = tmux.wait_for_prompt();
    assert!(!screen.contains("CALLSITE") && screen.contains("heapbpf top"), "{screen}");
    tmux.enter("echo code $?");
    tmux.wait_for("\ncode 0");
}

/// Fails unless the screen has attributes and the default colours only.
#[track_caller]
fn assert_no_colours(tmux: &Tmux) {
    let screen = tmux.coloured();
    let colours = screen.split("\u{1b}[").skip(1).filter_map(|rest| rest.split('m').next());
    let colours: Vec<&str> = colours.flat_map(|codes| codes.split(';')).collect();
    assert!(
        colours.iter().all(|code| ["", "0", "1", "4", "7", "22", "24", "27", "39", "49"].contains(code)),
        "{colours:?}"
    );
    assert!(colours.contains(&"7"), "what is selected is reversed: {colours:?}");
}

#[test]
fn keys_sort_mark_and_filter() {
    let (mut target, tmux) = start(80, 24, "");
    target.work("0 4");
    let screen = tmux.wait_for("Allocate2 (growth.c");
    assert!(position(&screen, "Allocate2 (") < position(&screen, "Allocate ("), "by live bytes:\n{screen}");
    assert_eq!(row(&screen, "Allocate2")[..3], [">", "39.1", "KiB"], "{screen}");
    assert!(screen.contains("LIVE▼") && screen.contains("heap libc") && screen.contains("growth.c:5"), "{screen}");
    tmux.press(&["r"]);
    let screen = tmux.wait_for("LIVE▲");
    assert!(position(&screen, "Allocate2 (") > position(&screen, "Allocate ("), "reversed:\n{screen}");
    tmux.press(&["r", "m"]);
    tmux.wait_for("mark set");
    target.work("1 0");
    tmux.press(&["d"]);
    let screen = tmux.wait_for("+9.8 KiB");
    assert!(screen.contains("since the mark") && !screen.contains("Allocate2 ("), "the difference:\n{screen}");
    assert!(screen.contains("GROWTH▼"), "{screen}");
    tmux.press(&["d"]);
    tmux.wait_for("Allocate2 (growth.c");
    tmux.press(&["k"]);
    tmux.press(&["-l", "allocate2$"]);
    tmux.press(&["Enter"]);
    let screen = tmux.wait_for("CALLSITE (1, filter `");
    assert!(!screen.contains("Allocate (growth.c"), "{screen}");
    tmux.press(&["Escape"]);
    tmux.wait_for("CALLSITE (2)");
    tmux.press(&["p"]);
    tmux.wait_for("PAUSED");
    target.work("50 0");
    tmux.press(&["p"]);
    tmux.wait_until("the blocks since", |screen| !screen.contains("PAUSED") && screen.contains("527.3 KiB"));
    tmux.press(&["+"]);
    tmux.wait_for("refresh every 1s");
    tmux.press(&["?"]);
    let screen = tmux.wait_for("HELP");
    assert!(screen.contains("search a regular expression"), "{screen}");
    tmux.press(&["x", "H"]);
    tmux.wait_for("health: complete");
    quit(&tmux);
}

#[test]
fn processes_are_ranked_sorted_and_selected_without_colours() {
    require_root();
    let mut targets = [Target::start("growth.c"), Target::start("growth.c")];
    let [first, second] = [0, 1].map(|index: usize| targets[index].pid().to_string());
    let tmux = Tmux::start(100, 30);
    let options = format!("--pid {first} --pid {second} --no-inventory --interval 1 --refresh 500ms");
    tmux.enter(&format!("NO_COLOR=1 {} top {options}", binary().display()));
    tmux.wait_for("CALLSITE");
    targets[0].work("3 0");
    targets[1].work("0 4");
    let is_first = |screen: &str, one: &str, other: &str| position(screen, one) < position(screen, other);
    let screen = tmux.wait_for("Allocate2 (growth.c");
    assert!(is_first(&screen, &format!(" {second} "), &format!(" {first} ")), "by live bytes:\n{screen}");
    // With several processes, their pane is the first.
    tmux.press(&["r"]);
    let screen = tmux.wait_for("Allocate (growth.c");
    assert!(is_first(&screen, &format!(" {first} "), &format!(" {second} ")), "reversed:\n{screen}");
    assert!(!screen.contains("Allocate2 (growth.c"), "the callsites are those of the first process:\n{screen}");
    tmux.press(&["Down"]);
    let screen = tmux.wait_for("Allocate2 (growth.c");
    assert!(screen.contains(&format!("> {second:>6} ")), "the second is selected:\n{screen}");
    tmux.press(&["Up"]);
    tmux.wait_for("Allocate (growth.c");
    for (key, column) in [(">", "GROWTH/s▼"), (">", "ALLOC/s▼"), ("<", "GROWTH/s▼"), ("<", "LIVE▼")] {
        tmux.press(&[key]);
        tmux.wait_until(column, |screen| screen.lines().nth(1).is_some_and(|head| head.contains(column)));
    }
    let screen = tmux.wait_for("Allocate2 (growth.c");
    assert!(screen.contains(&format!("> {second:>6} ")), "the first line is selected again:\n{screen}");
    assert_no_colours(&tmux);
    quit(&tmux);
}

#[test]
fn the_flame_view_zooms_searches_and_reverses() {
    let (mut target, tmux) = start(100, 30, "");
    target.work("0 4");
    tmux.wait_for("Allocate2 (growth.c");
    tmux.press(&["f"]);
    let screen = tmux.wait_for("FLAME VIEW");
    assert!(position(&screen, " main") < position(&screen, " work") && screen.contains(" Allocate2"), "{screen}");
    tmux.press(&["/"]);
    tmux.press(&["-l", "allocate$"]);
    tmux.press(&["Enter"]);
    let screen = tmux.wait_for("1 match of `allocate$`: 29.3 KiB");
    assert!(screen.contains("29.3 KiB (42.9%) Allocate [growth]"), "the selected frame:\n{screen}");
    tmux.press(&["Enter"]);
    let zoomed = tmux.wait_until("one branch", |screen| !screen.contains(" Allocate2"));
    assert!(position(&zoomed, " main") < position(&zoomed, " Allocate"), "{zoomed}");
    tmux.press(&["BSpace"]);
    tmux.wait_for(" Allocate2");
    tmux.press(&["r"]);
    let screen = tmux.wait_for("allocating functions at the top");
    assert!(position(&screen, " Allocate2") < position(&screen, " main"), "{screen}");
    assert!(tmux.coloured().contains("\u{1b}[38;5;") || tmux.coloured().contains("\u{1b}[38;2;"), "it has colours");
    quit(&tmux);
}

#[test]
fn every_size_shows_the_callsites() {
    let (_target, tmux) = start(80, 24, "");
    for (width, height) in [(160, 50), (40, 10), (200, 20), (20, 6), (80, 24)] {
        tmux.resize(width, height);
        let fits = |screen: &str| {
            let lines: Vec<&str> = screen.lines().collect();
            let is_footer = lines.last().is_some_and(|line| line.starts_with("?help"));
            lines.len() == usize::from(height)
                && is_footer
                && lines.iter().all(|line| line.chars().count() <= usize::from(width))
        };
        let screen =
            tmux.wait_until(&format!("{width} × {height}"), |screen| fits(screen) && screen.contains("29.3 KiB"));
        assert_eq!(screen.contains("STACK"), height >= 20, "{screen}");
    }
    quit(&tmux);
}

#[test]
fn reports_are_saved_and_not_replaced_without_a_question() {
    let (_target, tmux) = start(80, 24, "");
    let path = tmux.file("saved.json");
    let save = |name: &str| {
        tmux.press(&["s"]);
        tmux.wait_for("save to");
        tmux.press(&["C-u"]);
        tmux.press(&["-l", name]);
        tmux.press(&["Enter"]);
    };
    save("saved.json");
    tmux.wait_for("wrote saved.json");
    let report: Value = serde_json::from_str(&fs::read_to_string(&path).expect("saved")).expect("JSON");
    assert_eq!(report["targets"][0]["totals"]["live_bytes"], 30_000, "{report:#}");
    fs::write(&path, "mine").expect("ours");
    save("saved.json");
    tmux.wait_for("replace it? (y/n)");
    tmux.press(&["n"]);
    tmux.wait_for("not saved");
    assert_eq!(fs::read_to_string(&path).expect("ours"), "mine");
    save("saved.json");
    tmux.wait_for("replace it? (y/n)");
    tmux.press(&["y"]);
    tmux.wait_for("wrote saved.json");
    assert!(fs::read_to_string(&path).expect("ours").contains("30000"));
    save("saved.doc");
    let screen = tmux.wait_for("unknown format `.doc`");
    assert!(screen.contains("saved.doc"), "{screen}");
    quit(&tmux);
}

#[test]
fn a_terminal_without_colours_is_readable() {
    require_root();
    let mut target = Target::start("growth.c");
    let tmux = Tmux::start(80, 24);
    let options = format!("--pid {} --no-inventory --interval 1 --refresh 500ms", target.pid());
    tmux.enter(&format!("TERM=vt100 {} top {options}", binary().display()));
    tmux.wait_for("CALLSITE");
    target.work("3 4");
    tmux.wait_for("Allocate2 (growth.c");
    tmux.press(&["f"]);
    tmux.wait_for("FLAME VIEW");
    assert_no_colours(&tmux);
    quit(&tmux);
}

#[test]
fn the_terminal_is_restored() {
    let (_target, tmux) = start(80, 24, "");
    quit(&tmux);
    let before = tmux.modes("before");
    let heapbpf = binary();
    let mut target = Target::start("growth.c");
    let command = format!("{} top --pid {} --no-inventory --interval 1", heapbpf.display(), target.pid());
    // SIGTERM, SIGHUP from a process, and Ctrl-C.
    for (number, end) in ["TERM", "HUP", "INT"].into_iter().enumerate() {
        tmux.enter(&format!("({command} & echo $! > pid{number}; wait $!) < /dev/tty; echo over{number}"));
        tmux.wait_for("CALLSITE");
        target.work("1 0");
        tmux.wait_for("Allocate (growth.c");
        let pid = fs::read_to_string(tmux.file(&format!("pid{number}"))).expect("written");
        kill(end, pid.trim());
        let screen = tmux.wait_for(&format!("\nover{number}"));
        assert!(!screen.contains("CALLSITE"), "{screen}");
        assert_eq!(tmux.modes(&format!("after{number}")), before, "after SIG{end}");
    }
    // Ctrl-Z and `fg`.
    tmux.enter(&command);
    tmux.wait_for("CALLSITE");
    target.work("1 0");
    tmux.wait_for("Allocate (growth.c");
    tmux.press(&["C-z"]);
    let screen = tmux.wait_for("Stopped");
    assert!(!screen.contains("CALLSITE"), "{screen}");
    assert_eq!(tmux.modes("stopped"), before);
    target.work("5 0");
    tmux.enter("fg");
    let screen = tmux.wait_for("Allocate (growth.c");
    assert!(screen.contains("CALLSITE"), "{screen}");
    tmux.wait_for("58.6 KiB");
    quit(&tmux);
    assert_eq!(tmux.modes("continued"), before);
}

fn kill(signal: &str, pid: &str) {
    let status = std::process::Command::new("kill").args([&format!("-{signal}"), pid]).status().expect("it runs");
    assert!(status.success(), "kill -{signal} {pid}");
}

/// Runs this test in a terminal, where it panics while it has the screen.
#[test]
fn a_panic_restores_the_terminal_before_its_message() {
    if std::env::var_os(PANICS).is_some() {
        heapbpf::internals::panic_on_screen();
    }
    let tmux = Tmux::start(80, 24);
    let before = tmux.modes("before");
    let test = std::env::current_exe().expect("known");
    let name = "top::a_panic_restores_the_terminal_before_its_message";
    // A backtrace would scroll the message away.
    let environment = format!("{PANICS}=1 RUST_BACKTRACE=0");
    tmux.enter(&format!("{environment} {} --exact {name} --nocapture --test-threads=1; echo over", test.display()));
    let screen = tmux.wait_for("\nover");
    assert!(screen.contains("a panic on the screen"), "{screen}");
    assert_eq!(tmux.modes("after"), before);
}

#[test]
fn a_command_is_shown_until_the_user_quits() {
    require_root();
    let tmux = Tmux::start(80, 24);
    let heapbpf = binary();
    let script = "echo to stdout; echo to stderr >&2; cat; sleep 3; exit 7";
    tmux.enter(&format!(
        "{} top --command-output out.txt --refresh 500ms -- sh -c '{script}'; echo code $?",
        heapbpf.display()
    ));
    let screen = tmux.wait_for("the recording has ended");
    assert!(screen.contains("(exited)") && !screen.contains("to std"), "{screen}");
    assert_eq!(fs::read_to_string(tmux.file("out.txt")).expect("written"), "to stdout\nto stderr\n");
    tmux.press(&["q"]);
    tmux.wait_for("\ncode 7");
}

#[test]
fn scripts_receive_tables_json_and_csv() {
    let mut target = Target::start("growth.c");
    let mut top = |options: &str| {
        let pid = target.pid().to_string();
        let words = ["top", "--pid", &pid, "--no-inventory", "--interval", "1", "--refresh", "500ms"];
        let mut heapbpf = Heapbpf::new(words.into_iter().chain(options.split_ascii_whitespace()));
        let session = heapbpf.start();
        target.work("3 4");
        session.wait().expect_code(0)
    };
    let tables = top("--once --duration 4s").stdout;
    let expect = ["GROWTH/s", "growth", "CALLSITE", "39.1 KiB", "Allocate2 (growth.c:5)"];
    assert!(expect.iter().all(|text| tables.contains(text)), "{tables}");

    let records = top("--json --duration 4s").stdout;
    let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).expect("one per line")).collect();
    assert!((4..=9).contains(&records.len()), "{} refreshes in 4 s", records.len());
    let last = &records[records.len() - 1]["targets"][0];
    assert_eq!((&last["live_bytes"], &last["growth_bytes"]), (&70_000.into(), &70_000.into()), "{last:#}");
    assert_eq!(last["callsites"][0]["stack"][0]["function"], "Allocate2", "{last:#}");
    let rates = ["alloc_bytes_per_second", "growth_bytes_per_second"];
    assert!(rates.iter().all(|rate| records.iter().all(|record| record["targets"][0][rate].is_f64())), "{last:#}");

    let lines = top("--csv --duration 3s").stdout;
    let mut lines = lines.lines();
    let heading = lines.next().expect("a heading");
    assert!(heading.starts_with("unix_ns,elapsed_ns,pid,comm,live_bytes"), "{heading}");
    let last = lines.last().expect("a line per refresh");
    assert!(last.contains(&format!(",{},growth,70000,70000,", target.pid())), "{last}");
}

#[test]
fn a_pipe_is_no_screen() {
    let error = Heapbpf::new(["top", "--pid", "1"]).run().expect_error(2);
    assert!(error.contains("needs a terminal") && error.contains("`--once`"), "{error}");
    let error = Heapbpf::new(["top", "--pid", "1", "-o", "-"]).run().expect_error(2);
    assert!(error.contains("name a file"), "{error}");
    let error = Heapbpf::new(["top", "--once"]).run().expect_error(2);
    assert!(error.contains("nothing to profile"), "{error}");
}
