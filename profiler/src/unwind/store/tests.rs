//! The store with vectors as maps, searched as by the kernel side.

use std::cell::RefCell;
use std::rc::Rc;

use heapbpf_base::address::FileOffset;
use profiler_common::unwind::{CallerBp, Cfa, ReadTables, UnwindRow, find_rule};
use proptest::prelude::*;

use super::*;
use crate::unwind::image::Samples;
use crate::unwind::table::BuildStats;

/// Contents of the kernel's maps.
#[derive(Debug)]
struct Kernel {
    rows: Vec<RowCell>,
    pages: Vec<PageRows>,
    rules: Vec<Rule>,
    mappings: Vec<ProcessMapping>,
    processes: HashMap<u32, ProcessMappings>,
    files: HashMap<FileKey, CodeFile>,
    row_writes: usize,
    /// A map whose writes fail.
    refuses: Option<Map>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Map {
    Rows,
    Pages,
    Rules,
    Mappings,
    Processes,
}

#[derive(Clone, Debug)]
struct Maps(Rc<RefCell<Kernel>>);

fn write<T: Copy>(array: &mut [T], first: u32, values: &[T]) -> io::Result<()> {
    let first = first as usize;
    let place = array.get_mut(first..first + values.len()).ok_or_else(|| io::Error::other("beyond the map"))?;
    place.copy_from_slice(values);
    Ok(())
}

impl Maps {
    fn ask(&self, map: Map) -> io::Result<()> {
        if self.0.borrow().refuses == Some(map) { Err(io::Error::other("refused")) } else { Ok(()) }
    }
}

impl UnwindMaps for Maps {
    fn write_rows(&mut self, first: u32, cells: &[RowCell]) -> io::Result<()> {
        self.ask(Map::Rows)?;
        self.0.borrow_mut().row_writes += 1;
        write(&mut self.0.borrow_mut().rows, first, cells)
    }
    fn write_pages(&mut self, first: u32, pages: &[PageRows]) -> io::Result<()> {
        self.ask(Map::Pages)?;
        write(&mut self.0.borrow_mut().pages, first, pages)
    }
    fn write_rules(&mut self, first: u32, rules: &[Rule]) -> io::Result<()> {
        self.ask(Map::Rules)?;
        write(&mut self.0.borrow_mut().rules, first, rules)
    }
    fn write_mappings(&mut self, first: u32, mappings: &[ProcessMapping]) -> io::Result<()> {
        self.ask(Map::Mappings)?;
        write(&mut self.0.borrow_mut().mappings, first, mappings)
    }
    fn write_runtime(&mut self, _: u32, _: &RuntimePlace) -> io::Result<()> {
        Ok(())
    }
    fn read_cell(&self, index: u32) -> Option<RowCell> {
        self.0.borrow().rows.get(index as usize).copied()
    }
    fn read_page(&self, index: u32) -> Option<PageRows> {
        self.0.borrow().pages.get(index as usize).copied()
    }
    fn set_process(&mut self, pid: Pid, mappings: ProcessMappings) -> io::Result<()> {
        self.ask(Map::Processes)?;
        self.0.borrow_mut().processes.insert(pid.0, mappings);
        Ok(())
    }
    fn set_code_file(&mut self, file: FileKey, table: Option<CodeFile>) -> io::Result<()> {
        let files = &mut self.0.borrow_mut().files;
        match table {
            Some(table) => drop(files.insert(file, table)),
            None => drop(files.remove(&file)),
        }
        Ok(())
    }
    fn forget_changes(&mut self, _: Pid) {}
    fn is_behind(&self, _: Pid, _: &ProcessMappings) -> bool {
        false
    }
    fn changes(&self, _: Pid) -> Changes {
        Changes::default()
    }
    fn remove_process(&mut self, pid: Pid) -> io::Result<()> {
        self.ask(Map::Processes)?;
        self.0.borrow_mut().processes.remove(&pid.0);
        Ok(())
    }
}

impl ReadTables for Kernel {
    fn row(&self, index: u32) -> Option<UnwindRow> {
        self.rows.get(index as usize / 2).map(|cell| cell.row(index))
    }
    fn page(&self, index: u32) -> Option<PageRows> {
        self.pages.get(index as usize).copied()
    }
    fn rule(&self, index: u16) -> Option<Rule> {
        self.rules.get(usize::from(index)).copied()
    }
}

fn store(cells: u32) -> (TableStore<Maps>, Maps) {
    let gap = UnwindRow { pc_low: 0, rule: 0 };
    let maps = Maps(Rc::new(RefCell::new(Kernel {
        rows: vec![RowCell { even: gap, odd: gap }; cells as usize],
        pages: vec![PageRows::default(); 64],
        rules: vec![Rule::GAP; 1000],
        mappings: vec![ProcessMapping::NONE; 16],
        processes: HashMap::new(),
        files: HashMap::new(),
        row_writes: 0,
        refuses: None,
    })));
    let capacity = Capacity { cells, pages: 64, mappings: 16 };
    (TableStore::new(maps.clone(), capacity, TableRef::FRAME_POINTER), maps)
}

fn rule(offset: i32) -> Rule {
    Rule::new(Cfa::Sp { offset }, CallerBp::Same).expect("representable")
}

/// A module of one page with two functions at link addresses 0x1000 and 0x2000, whose frames have these sizes.
fn table(first: i32, second: i32) -> Table {
    let mut rules = RuleTable::default();
    let first = rules.number(rule(first)).expect("room");
    let second = rules.number(rule(second)).expect("room");
    let rows = vec![
        UnwindRow { pc_low: 0, rule: 0 },
        UnwindRow { pc_low: 0x1000, rule: first },
        UnwindRow { pc_low: 0x2000, rule: second },
    ];
    Table {
        base: LinkAddr(0),
        pages: vec![PageRows { first: 0, end: 3 }],
        rows,
        rules: rules.into_rules(),
        stats: BuildStats::default(),
        samples: Samples::default(),
    }
}

/// A module of one page, mapped whole at `start`.
fn mapped(module: u32, start: u64) -> MappedCode {
    let end = TargetAddr(start + 0x10000);
    MappedCode { start: TargetAddr(start), end, module: Some((ModuleId(module), start)), generated: false, file: None }
}

/// The rule that the kernel side would find at an address of a process.
fn found(maps: &Maps, pid: u32, address: u64) -> Option<Rule> {
    let kernel = maps.0.borrow();
    let process = kernel.processes.get(&pid)?;
    let rows = &kernel.mappings[process.first as usize..(process.first + process.count) as usize];
    let mapping = rows.iter().find(|mapping| mapping.contains(address))?;
    find_rule(&*kernel, &mapping.table, address)
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn each_process_finds_its_modules_where_it_maps_them() {
    let (mut store, maps) = store(100);
    let tables = |id: ModuleId| Some(if id.0 == 0 { table(16, 32) } else { table(48, 16) });
    let code = [mapped(0, 0x40_0000), mapped(1, 0x7f00_0000_0000)];
    assert_eq!(store.set_process(Pid(1), (&code, &[]), 0, MonotonicNanos(0), tables).expect("fits"), []);
    let other = [mapped(1, 0x10_0000)];
    store.set_process(Pid(2), (&other, &[]), 0, MonotonicNanos(0), tables).expect("fits");
    assert_eq!(found(&maps, 1, 0x40_1234), Some(rule(16)));
    assert_eq!(found(&maps, 1, 0x40_2000), Some(rule(32)));
    assert_eq!(found(&maps, 1, 0x7f00_0000_1000), Some(rule(48)));
    assert_eq!(found(&maps, 2, 0x10_2abc), Some(rule(16)));
    assert_eq!(found(&maps, 2, 0x40_1234), None, "another process's mapping");
    assert_eq!(found(&maps, 1, 0x40_0fff), Some(Rule::GAP));
    assert_eq!(maps.0.borrow().row_writes, 2, "a module that two processes map is loaded once");
}

#[test]
fn generated_code_is_unwound_by_frame_pointers_and_unknown_files_end_the_stack() {
    let (mut store, maps) = store(10);
    let at = |start: u64, generated| MappedCode {
        start: TargetAddr(start),
        end: TargetAddr(start + 0x1000),
        module: None,
        generated,
        file: None,
    };
    store
        .set_process(Pid(1), (&[at(0x1000, true), at(0x2000, false)], &[]), 0, MonotonicNanos(0), |_| None)
        .expect("fits");
    let kernel = maps.0.borrow();
    assert!(kernel.mappings[0].table.is_frame_pointer());
    assert_eq!(kernel.mappings[1].table, TableRef::NONE);
}

#[test]
fn the_agent_finds_the_same_rules_as_the_kernel_side() {
    let (mut store, maps) = store(100);
    let (generated, unknown) = (
        MappedCode { start: TargetAddr(0x1000), end: TargetAddr(0x2000), module: None, generated: true, file: None },
        MappedCode { start: TargetAddr(0x2000), end: TargetAddr(0x3000), module: None, generated: false, file: None },
    );
    let code = [generated, unknown, mapped(0, 0x40_0000), mapped(1, 0x7f00_0000_0000)];
    // The second module's rows do not begin at index 0.
    let tables = |id: ModuleId| Some(if id.0 == 0 { table(16, 32) } else { table(48, 16) });
    store.set_process(Pid(1), (&code, &[]), 0, MonotonicNanos(0), tables).expect("fits");
    for address in [0x40_0000, 0x40_1234, 0x40_2000, 0x40_ffff, 0x7f00_0000_1000, 0x7f00_0000_2fff] {
        assert_eq!(store.rule_at(Pid(1), address, None).ok(), found(&maps, 1, address), "{address:#x}");
    }
    assert_eq!(store.rule_at(Pid(1), 0x1fff, None), Ok(Rule::FRAME_POINTER));
    assert_eq!(store.rule_at(Pid(1), 0x2fff, None), Err(NoRule::NoTable));
    for address in [0, 0xfff, 0x3000, 0x3f_ffff, 0x41_0000, u64::MAX] {
        assert_eq!(store.rule_at(Pid(1), address, None), Err(NoRule::Unmapped), "{address:#x}");
    }
    assert_eq!(store.rule_at(Pid(2), 0x40_1234, None), Err(NoRule::Unmapped), "another process");
}

#[test]
fn copies_are_permitted_anew_with_each_registration() {
    let (mut store, maps) = store(100);
    let permitted = || maps.0.borrow().processes[&1].copies;
    let register = |store: &mut TableStore<Maps>| {
        store
            .set_process(Pid(1), (&[mapped(0, 0x10_0000)], &[]), 0, MonotonicNanos(0), |_| Some(table(16, 32)))
            .expect("fits");
    };
    store.permit_copies(Pid(1), 5).expect("ignored: it is not registered");
    register(&mut store);
    assert_eq!((permitted(), store.denies_copies(Pid(1))), (COPIES_MAX, false));
    let before = maps.0.borrow().processes[&1];
    store.permit_copies(Pid(1), 0).expect("registered");
    assert!(store.denies_copies(Pid(1)));
    assert_eq!(maps.0.borrow().processes[&1], ProcessMappings { copies: 0, ..before }, "the mappings stay");
    register(&mut store);
    assert_eq!((permitted(), store.denies_copies(Pid(1))), (COPIES_MAX, false));
}

#[test]
fn a_process_without_registered_mappings_is_permitted_copies() {
    let (mut store, maps) = store(100);
    assert!(!store.knows(Pid(1)));
    store.set_process(Pid(1), (&[], &[]), 0, MonotonicNanos(0), |_| None).expect("fits");
    assert!(store.knows(Pid(1)));
    let expected = maps.0.borrow().processes[&1];
    assert_eq!((expected.count, expected.copies), (0, COPIES_MAX));
    assert_eq!(
        store.rule_at(Pid(1), 0x10_1234, None),
        Err(NoRule::Unmapped),
        "so that their walks are continued later"
    );
    store
        .set_process(Pid(1), (&[mapped(0, 0x10_0000)], &[]), 0, MonotonicNanos(0), |_| Some(table(16, 32)))
        .expect("fits");
    assert_ne!(maps.0.borrow().processes[&1].serial, expected.serial, "rules are cached by it");
    assert_eq!(found(&maps, 1, 0x10_1234), Some(rule(16)));
}

#[test]
fn the_least_recently_used_table_is_evicted_unless_it_is_in_use() {
    // Capacity for two tables of two cells.
    let (mut store, maps) = store(4);
    let tables = |id: ModuleId| Some(table(16 + 8 * i32::try_from(id.0).expect("small"), 8));
    store.set_process(Pid(1), (&[mapped(0, 0x10_0000)], &[]), 0, MonotonicNanos(0), tables).expect("fits");
    store.set_process(Pid(2), (&[mapped(1, 0x10_0000)], &[]), 0, MonotonicNanos(0), tables).expect("fits");
    let without =
        store.set_process(Pid(3), (&[mapped(2, 0x10_0000)], &[]), 0, MonotonicNanos(0), tables).expect("fits");
    assert_eq!(without, [ModuleId(2)], "both are in use");
    assert_eq!(found(&maps, 3, 0x10_1000), None);
    store.remove_process(Pid(1), MonotonicNanos(0)).expect("there");
    assert_eq!(found(&maps, 1, 0x10_1000), None);
    let without =
        store.set_process(Pid(3), (&[mapped(2, 0x10_0000)], &[]), 0, MonotonicNanos(0), tables).expect("fits");
    assert_eq!(without, []);
    assert_eq!(found(&maps, 3, 0x10_1000), Some(rule(32)));
    assert_eq!(found(&maps, 2, 0x10_1000), Some(rule(24)), "the one in use is untouched");
}

#[test]
fn stacks_are_continued_through_code_that_was_just_unmapped() {
    let (mut store, maps) = store(100);
    let code = [mapped(0, 0x10_0000), mapped(1, 0x20_0000)];
    let tables = |id: ModuleId| Some(if id.0 == 0 { table(16, 32) } else { table(48, 16) });
    let set = |store: &mut TableStore<Maps>, code: &[MappedCode], nanos| {
        store.set_process(Pid(1), (code, &[]), 0, MonotonicNanos(nanos), tables).expect("fits");
    };
    let second = u64::try_from(WALK_MAX.as_nanos()).expect("short");
    let at =
        |store: &TableStore<Maps>, pid, address, nanos| store.rule_at(Pid(pid), address, Some(MonotonicNanos(nanos)));
    set(&mut store, &code, 0);
    set(&mut store, &code[..1], 1);
    assert_eq!(found(&maps, 1, 0x20_1000), None, "it is unmapped");
    assert_eq!(store.rule_at(Pid(1), 0x20_1000, None), Err(NoRule::Unmapped), "other code may be there by now");
    assert_eq!(at(&store, 1, 0x20_1000, 2), Ok(rule(48)));
    assert_eq!(at(&store, 2, 0x20_1000, 2), Err(NoRule::Unmapped), "another process");
    assert_eq!(at(&store, 1, 0x20_1000, second + 2), Err(NoRule::Unmapped), "too long ago");
    // What is mapped there now counts.
    set(&mut store, &[mapped(0, 0x10_0000), mapped(0, 0x20_0000)], 2);
    assert_eq!(at(&store, 1, 0x20_1000, 3), Ok(rule(16)));
    set(&mut store, &code[..1], 3);
    assert_eq!(at(&store, 1, 0x20_1000, 4), Ok(rule(16)), "the latest of the former mappings");
    // Another program of the same process has no code of this one.
    store.remove_process(Pid(1), MonotonicNanos(5)).expect("there");
    set(&mut store, &code[1..], 6);
    assert_eq!(at(&store, 1, 0x10_1000, 7), Err(NoRule::Unmapped));
}

#[test]
fn tables_of_former_mappings_are_evicted_for_new_ones() {
    // Capacity for two tables of two cells.
    let (mut store, maps) = store(4);
    let tables = |id: ModuleId| Some(table(16 + 8 * i32::try_from(id.0).expect("small"), 8));
    let set = |store: &mut TableStore<Maps>, modules: [u32; 2]| {
        let code = [mapped(modules[0], 0x10_0000), mapped(modules[1], 0x20_0000)];
        store.set_process(Pid(1), (&code, &[]), 0, MonotonicNanos(0), tables).expect("fits")
    };
    assert_eq!(set(&mut store, [0, 1]), []);
    assert_eq!(set(&mut store, [0, 2]), [ModuleId(2)], "the old mappings are in use until the new ones are written");
    assert_eq!(set(&mut store, [0, 2]), []);
    assert_eq!(found(&maps, 1, 0x20_1000), Some(rule(32)));
    assert_eq!(store.rule_at(Pid(1), 0x20_1000, None), Ok(rule(32)));
    store.set_process(Pid(1), (&[], &[]), 0, MonotonicNanos(0), tables).expect("fits");
    assert_eq!(store.rule_at(Pid(1), 0x10_1000, Some(MonotonicNanos(0))), Ok(rule(16)));
    store.set_process(Pid(2), (&[mapped(3, 0x10_0000)], &[]), 0, MonotonicNanos(0), tables).expect("fits");
    assert_eq!(
        store.rule_at(Pid(1), 0x10_1000, Some(MonotonicNanos(0))),
        Err(NoRule::Unmapped),
        "its table may be overwritten"
    );
}

#[test]
fn a_new_set_of_mappings_replaces_the_old_one() {
    let (mut store, maps) = store(100);
    let tables = |_| Some(table(16, 32));
    store.set_process(Pid(1), (&[mapped(0, 0x10_0000)], &[]), 0, MonotonicNanos(0), tables).expect("fits");
    let code = [mapped(0, 0x10_0000), mapped(1, 0x20_0000)];
    store.set_process(Pid(1), (&code, &[]), 0, MonotonicNanos(1), tables).expect("fits");
    assert_eq!(found(&maps, 1, 0x20_1000), Some(rule(16)));
    assert_eq!(maps.0.borrow().row_writes, 2, "what stayed was not loaded again");
}

#[test]
fn mappings_are_reused_only_when_no_walk_can_read_them() {
    let (mut store, maps) = store(100);
    let code: Vec<_> = (0..6).map(|i| mapped(0, 0x10_0000 * (i + 1))).collect();
    let set = |store: &mut TableStore<Maps>, now| {
        store.set_process(Pid(1), (&code, &[]), 0, MonotonicNanos(now), |_| Some(table(16, 32)))
    };
    set(&mut store, 0).expect("6 of 16");
    set(&mut store, 1).expect("12 of 16");
    set(&mut store, SECOND).expect_err("the first six may still be read");
    let kept = maps.0.borrow().processes[&1];
    assert_eq!(kept.count, 6, "what was there stays");
    set(&mut store, 2 + 2 * SECOND).expect("the first six are free again");
}

/// Six mappings of one module.
fn six() -> Vec<MappedCode> {
    (0..6).map(|i| mapped(0, 0x10_0000 * (i + 1))).collect()
}

#[test]
fn ranges_of_a_process_are_freed_even_if_its_entry_cannot_be_removed() {
    let (mut store, maps) = store(2);
    let tables = |_| Some(table(16, 32));
    for i in 0..10 {
        let now = MonotonicNanos(2 * i * SECOND);
        store.set_process(Pid(1), (&six(), &[]), 0, now, tables).expect("two sets find room, and the table");
        maps.0.borrow_mut().refuses = Some(Map::Processes);
        store.remove_process(Pid(1), now).expect_err("refused");
        maps.0.borrow_mut().refuses = None;
    }
    let without = store.set_process(Pid(2), (&[mapped(1, 0x10_0000)], &[]), 0, MonotonicNanos(30 * SECOND), tables);
    assert_eq!(without.expect("there is room"), [], "nobody uses the other module's table any more");
}

#[test]
fn failed_writes_use_no_capacity() {
    let (mut store, maps) = store(2);
    let tables = |_| Some(table(16, 32));
    for map in [Map::Rows, Map::Pages, Map::Rules, Map::Mappings, Map::Processes].repeat(4) {
        maps.0.borrow_mut().refuses = Some(map);
        let refused = store.set_process(Pid(1), (&six(), &[]), 0, MonotonicNanos(0), |_| Some(table(16, 32)));
        // A loaded table and its rules are not written again.
        assert!(refused.is_err() || matches!(map, Map::Rows | Map::Pages | Map::Rules), "{map:?}");
        maps.0.borrow_mut().refuses = None;
        store.remove_process(Pid(1), MonotonicNanos(0)).expect("there or not");
    }
    let code: Vec<_> = (0..16).map(|i| mapped(1, 0x10_0000 * (i + 1))).collect();
    let without = store.set_process(Pid(2), (&code, &[]), 0, MonotonicNanos(2 * SECOND), tables);
    assert_eq!(without.expect("all mappings are free"), [], "nobody uses the other module's table");
}

#[test]
fn a_full_array_has_no_free_range() {
    let mut ranges = Ranges::new(10);
    assert_eq!(ranges.take(6), Some(0..6));
    assert_eq!(ranges.take(5), None);
    assert_eq!(ranges.take(4), Some(6..10));
    assert_eq!(ranges.take(1), None);
    ranges.give_back(0..6);
    assert_eq!(ranges.take(6), Some(0..6));
}

proptest! {
    /// Allocated ranges never overlap, and freeing all of them restores the whole array.
    #[test]
    fn taken_ranges_are_disjoint(operations in proptest::collection::vec((1u32..40, any::<bool>()), 1..200)) {
        let mut ranges = Ranges::new(256);
        let mut taken: Vec<Range<u32>> = Vec::new();
        for (length, give_back) in operations {
            if give_back && !taken.is_empty() {
                let range = taken.swap_remove(length as usize % taken.len());
                ranges.give_back(range);
            } else if let Some(range) = ranges.take(length) {
                prop_assert!(range.end <= 256);
                prop_assert!(taken.iter().all(|other| other.end <= range.start || range.end <= other.start));
                taken.push(range);
            }
            prop_assert_eq!(256 - ranges.0.total_available(), taken.iter().map(|range| range.end - range.start).sum::<u32>());
        }
        taken.into_iter().for_each(|range| ranges.give_back(range));
        prop_assert_eq!(ranges.take(256), Some(0..256));
    }
}

/// A module of one page, whose file has this number, mapped whole at `start`.
fn of_file(module: u32, start: u64) -> MappedCode {
    MappedCode { file: Some((FileKey::new(8, 1, u64::from(module) + 1), start)), ..mapped(module, start) }
}

fn change(module: u32, start: u64, is_corrected: bool) -> Mapped {
    let file = FileKey::new(8, 1, u64::from(module) + 1);
    let (start, end) = (TargetAddr(start), TargetAddr(start + 0x1_0000));
    Mapped { pid: Pid(1), start, end, offset: FileOffset(0), file, number: 1, is_corrected, has_replaced: true }
}

#[test]
fn tables_of_files_are_known_to_the_kernel_side_while_processes_use_them() {
    let (mut store, maps) = store(100);
    let tables = |id: ModuleId| Some(if id.0 == 0 { table(16, 32) } else { table(48, 16) });
    let (first, second) = (of_file(0, 0x10_0000), of_file(1, 0x10_0000));
    store.set_process(Pid(1), (&[first], &[second]), 0, MonotonicNanos(0), tables).expect("fits");
    // What the kernel side enters when the second file is mapped elsewhere.
    let file = maps.0.borrow().files[&FileKey::new(8, 1, 2)];
    let table = file.table(0x30_0000);
    assert_eq!(find_rule(&*maps.0.borrow(), &table, 0x30_1000), Some(rule(48)));
    assert_eq!((file.code_start, file.code_end), (0, 0x1_0000));
    store.remove_process(Pid(1), MonotonicNanos(0)).expect("there");
    assert_eq!(maps.0.borrow().files.len(), 2, "a walk may still use their tables");
    let later = MonotonicNanos(10 * SECOND);
    store.set_process(Pid(2), (&[], &[]), 0, later, tables).expect("fits");
    assert!(maps.0.borrow().files.is_empty());
}

#[test]
fn corrections_of_the_kernel_side_are_followed() {
    let (mut store, _maps) = store(100);
    let tables = |id: ModuleId| Some(if id.0 == 0 { table(16, 32) } else { table(48, 16) });
    let code = ([of_file(0, 0x10_0000), of_file(0, 0x20_0000)], [of_file(1, 0x10_0000)]);
    store.set_process(Pid(1), (&code.0, &code.1), 0, MonotonicNanos(0), tables).expect("fits");
    let at = |store: &TableStore<Maps>, address| store.rule_at(Pid(1), address, None);
    assert_eq!(at(&store, 0x10_1000), Ok(rule(16)));
    assert!(store.correct(Pid(1), &change(1, 0x10_0000, true)));
    assert_eq!(at(&store, 0x10_1000), Ok(rule(48)));
    assert!(store.correct(Pid(1), &change(7, 0x10_8000, false)));
    assert_eq!(at(&store, 0x10_9000), Err(NoRule::Unmapped), "nobody knows what is there");
    assert_eq!(at(&store, 0x20_1000), Ok(rule(16)), "the others stay");
    assert!(store.correct(Pid(2), &change(1, 0x10_0000, true)));
    assert!(!store.correct(Pid(1), &change(7, 0x20_0000, true)), "its table is not known");
}
