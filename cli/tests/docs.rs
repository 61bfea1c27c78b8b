//! Checks of pages and comments: files, headings and rules of the manual that they name exist, the book is complete, and the
//! prose keeps its rules.

#[path = "docs/markdown.rs"]
mod markdown;
#[path = "docs/prose.rs"]
mod prose;

use markdown::Page;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Words that readers who know the privileged specification and KVM look up in the tables of events.
const LOOKED_UP: &str = "brief, full path, CSR, `satp`, `hgatp`, `vsatp`, `time`, timer, Sstc, WFI, IPI, SBI, RFENCE, inject, guest-page fault, \
    fence, TLB, VMID, swap in, swap out, DMA, dirty, teardown, PLIC, snapshot, breakpoint, trace, reset";
/// Most characters of a table's cell: more belong into a paragraph.
const MOST_IN_CELL: usize = 200;
/// The first parts of absolute paths that pages may name: those of a system, of a guest, or of a device tree.
const KNOWN_TOPS: [&str; 12] =
    ["bin", "chosen", "dev", "etc", "init", "mnt", "proc", "root", "sys", "tmp", "usr", "var"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is in the repository").into()
}

/// The files of the repository, by their paths in it: what git has, or would have.
fn files() -> BTreeSet<PathBuf> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").args(args).current_dir(repository()).output().expect("git");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8(listed.stdout).expect("names are text");
    let files: BTreeSet<_> = names.split_terminator('\0').map(PathBuf::from).collect();
    // What is deleted and not yet committed is listed, too.
    let files: BTreeSet<_> = files.into_iter().filter(|path| repository().join(path).is_file()).collect();
    assert!(files.contains(Path::new("README.md")), "the repository is here: {files:?}");
    files
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(repository().join(path)).expect("a file")).into_owned()
}

fn pages() -> BTreeMap<PathBuf, Page> {
    let pages = files().into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "md"));
    pages.map(|path| (path.clone(), Page::read(&read(&path)))).collect()
}

/// A path relative to that of a file, or `None` if it leads out of the repository.
fn resolve(from: &Path, to: &str) -> Option<PathBuf> {
    let mut path = from.parent()?.to_owned();
    for part in Path::new(to).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => path.pop().then_some(())?,
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

fn complain(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let (pages, files) = (pages(), files());
    let mut complaints = Vec::new();
    for (path, link) in pages.iter().flat_map(|(path, page)| page.links.iter().map(move |link| (path, link))) {
        if link.contains("://") {
            continue;
        }
        let (file, anchor) = link.split_once('#').map_or((link.as_str(), None), |(file, anchor)| (file, Some(anchor)));
        let target = if file.is_empty() { Some(path.clone()) } else { resolve(path, file) };
        let is_there = |target: &PathBuf| files.iter().any(|file| file.starts_with(target));
        let Some(target) = target.filter(is_there) else {
            complaints.push(format!("{}: the link {link} leads nowhere", path.display()));
            continue;
        };
        let has = |anchor: &str| pages.get(&target).is_some_and(|page| page.anchors.iter().any(|one| one == anchor));
        if anchor.is_some_and(|anchor| !has(anchor)) {
            complaints.push(format!("{}: the link {link} names no heading", path.display()));
        }
    }
    complain(&complaints);
}

/// A file may be named by the end of its path, such as `exit/memory.rs`.
#[test]
fn files_that_pages_name_are_there() {
    let files = files();
    let source = Regex::new(r"^[\w./-]+\.(rs|md)$").expect("a pattern");
    let tops: BTreeSet<_> = files.iter().filter_map(|file| file.iter().next()).collect();
    let mut complaints = Vec::new();
    for (path, code) in pages().iter().flat_map(|(path, page)| page.code.iter().map(move |code| (path, code))) {
        let named = Path::new(code);
        let is_source = source.is_match(code);
        let is_path = code.contains('/') && !code.contains(char::is_whitespace);
        let is_below_top = is_path && named.iter().next().is_some_and(|top| tops.contains(top));
        let is_there = || files.iter().any(|file| file.ends_with(named) || file.starts_with(named));
        if (is_source || is_below_top) && !named.is_absolute() && !is_there() {
            complaints.push(format!("{}: there is no `{code}`", path.display()));
        }
        let is_known = || named.iter().nth(1).is_some_and(|top| KNOWN_TOPS.iter().any(|known| top == *known));
        if is_path && named.is_absolute() && !is_known() {
            complaints.push(format!("{}: `{code}` is outside of the repository", path.display()));
        }
    }
    complain(&complaints);
}

/// The functions and types that a chapter's table of events names are in the file of the same row.
#[test]
fn tables_of_events_name_what_is_there() {
    const HEADING: &str = "\n## In the sources\n";
    let span = Regex::new("`([^`]+)`").expect("a pattern");
    let (mut complaints, mut rows, mut events) = (Vec::new(), 0, String::new());
    for path in pages().into_keys() {
        let text = read(&path);
        let table = text.split_once(HEADING).map_or("", |(_, section)| section);
        for row in table.lines().filter(|line| line.starts_with("| ") && line.ends_with(".rs` |")) {
            rows += 1;
            let cells: Vec<_> = row.trim_matches('|').split('|').collect();
            let [event, names, file] = cells[..] else { panic!("{}: three cells: {row}", path.display()) };
            if event.starts_with(" ...") {
                complaints.push(format!("{}: a row says nothing by itself: {row}", path.display()));
            }
            events.push_str(&event.to_lowercase());
            let source = read(Path::new(file.trim().trim_matches('`')));
            for name in span.captures_iter(names).map(|found| found[1].to_owned()) {
                let defined = Regex::new(&format!(r"\b(fn|struct|enum|trait|macro_rules!) {name}\b")).expect("a name");
                if !defined.is_match(&source) {
                    complaints.push(format!("{}: there is no `{name}` in{file}", path.display()));
                }
            }
        }
    }
    assert!(rows > 150, "only {rows} rows were found");
    let missing = LOOKED_UP.split(", ").filter(|word| !events.contains(&word.to_lowercase()));
    complaints.extend(missing.map(|word| format!("no event of these tables is called {word}")));
    complain(&complaints);
}

#[test]
fn pages_that_sources_name_are_there() {
    let pattern = Regex::new(r"\bdocs/[\w-]+\.md\b").expect("a pattern");
    let files = files();
    let mut complaints = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_none_or(|kind| kind != "lock")) {
        for named in pattern.find_iter(&read(path)).filter(|named| !files.contains(Path::new(named.as_str()))) {
            complaints.push(format!("{}: there is no {}", path.display(), named.as_str()));
        }
    }
    complain(&complaints);
}

/// The book: each page in its table of contents once, and each entry a page.
#[test]
fn the_book_has_each_page_once() {
    let is_page = |path: &&PathBuf| path.starts_with("docs") && path.extension().is_some_and(|kind| kind == "md");
    let contents = Path::new("docs/SUMMARY.md");
    let mut listed = Page::read(&read(contents)).links;
    listed.sort_unstable();
    let pages: Vec<_> = files().iter().filter(is_page).filter(|path| *path != contents).cloned().collect();
    let pages: Vec<_> = pages.iter().filter_map(|path| path.strip_prefix("docs").ok()?.to_str()).collect();
    assert_eq!(listed, pages, "the entries of docs/SUMMARY.md, and the pages in docs/");
}

/// Links that leave the book would lead nowhere in it.
#[test]
fn links_of_the_book_stay_in_it() {
    let pages = pages().into_iter().filter(|(path, _)| path.starts_with("docs"));
    let links = pages.flat_map(|(path, page)| page.links.into_iter().map(move |link| (path.clone(), link)));
    let leaves = links
        .filter(|(_, link)| !link.contains("://") && link.split('#').next().is_some_and(|file| file.contains('/')));
    complain(
        &leaves.map(|(path, link)| format!("{}: the link {link} leaves docs/", path.display())).collect::<Vec<_>>(),
    );
}

#[test]
fn pages_keep_the_rules_of_prose() {
    let mut complaints = Vec::new();
    for (path, page) in pages() {
        for line in page.prose.lines() {
            complaints
                .extend(prose::forbidden(line).iter().map(|word| format!("{}: `{word}` in: {line}", path.display())));
        }
    }
    complain(&complaints);
}

#[test]
fn doc_comments_keep_the_rules_of_prose() {
    let mut complaints = Vec::new();
    for path in files().iter().filter(|path| path.extension().is_some_and(|kind| kind == "rs")) {
        for comment in prose::doc_comments(&read(path)) {
            let of_comment = prose::complaints(&comment.text).into_iter();
            complaints.extend(of_comment.map(|what| format!("{}:{}: {what}", path.display(), comment.line)));
        }
    }
    complain(&complaints);
}

#[test]
fn every_test_guest_is_described() {
    let plan: toml::Table = read(Path::new("guests/Cargo.toml")).parse().expect("a manifest");
    let page = Page::read(&read(Path::new("docs/test-guests.md")));
    let guests = plan["bin"].as_array().expect("binaries").iter().filter_map(|guest| guest["name"].as_str());
    let described = |name: &str| page.cells.iter().any(|cell| cell.contains(&format!("`{name}`")));
    complain(
        &guests.filter(|name| !described(name)).map(|name| format!("nothing describes {name}")).collect::<Vec<_>>(),
    );
}

#[test]
fn every_option_of_a_run_is_described() {
    let help = Command::new(env!("CARGO_BIN_EXE_gnomon")).args(["run", "--help"]).output().expect("the command");
    let option = Regex::new(r"(?m)^ +(?:-\w, )?--([a-z][a-z-]*)").expect("a pattern");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let common = ["help", "version"];
    let options =
        option.captures_iter(&help).map(|found| found[1].to_owned()).filter(|name| !common.contains(&&**name));
    let described = Regex::new(r"(?m)^\| `--([a-z][a-z-]*)").expect("a pattern");
    let page = read(Path::new("docs/cli.md"));
    let described: BTreeSet<_> = described.captures_iter(&page).map(|found| found[1].to_owned()).collect();
    assert_eq!(options.collect::<BTreeSet<_>>(), described, "options of `gnomon run`, and those in docs/cli.md");
}

#[test]
fn every_key_of_a_vm_file_is_described() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("vm.toml");
    std::fs::write(&file, "no-such-key = 1").expect("a file");
    let refused = Command::new(env!("CARGO_BIN_EXE_gnomon")).arg("run").arg(file).output().expect("the command");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let (_, keys) = said.split_once("The keys are ").unwrap_or_else(|| panic!("no list of keys in {said}"));
    let (keys, _) = keys.split_once('\n').expect("it ends with its line");
    let key = Regex::new(r"(\w+)").expect("a pattern");
    let keys: BTreeSet<_> = key.captures_iter(keys).map(|found| found[1].to_owned()).collect();
    let described = Regex::new(r"(?m)^\| `(\w+)`").expect("a pattern");
    let page = read(Path::new("docs/vm-file.md"));
    let described: BTreeSet<_> = described.captures_iter(&page).map(|found| found[1].to_owned()).collect();
    assert_eq!(keys, described, "keys of VM files, and those in docs/vm-file.md");
}

#[test]
fn every_tunable_is_described() {
    let page = Page::read(&read(Path::new("docs/tunables.md")));
    let named = |name: &str| page.cells.iter().filter(|cell| **cell == format!("`{name}`")).count();
    let missing = abi::tunable::ALL.iter().filter(|tunable| named(tunable.name) != 1);
    complain(
        &missing.map(|tunable| format!("docs/tunables.md has not one row for {}", tunable.name)).collect::<Vec<_>>(),
    );
}

#[test]
fn cells_of_tables_are_short() {
    let mut complaints = Vec::new();
    for (path, cell) in pages().iter().flat_map(|(path, page)| page.cells.iter().map(move |cell| (path, cell))) {
        let length = cell.chars().count();
        if length > MOST_IN_CELL {
            complaints.push(format!("{}: a cell of {length} characters: {cell}", path.display()));
        }
    }
    complain(&complaints);
}

/// `norm:` ids are those of the RISC-V manual's normative rules. Which of them are named here stands in a list, each looked
/// up in the manual.
#[test]
fn rules_of_the_manual_are_known() {
    let pattern = Regex::new(r"\bnorm:[\w-]*").expect("a pattern");
    let list = Path::new("cli/tests/docs/norms.txt");
    let known = read(list);
    let known: BTreeSet<_> = known.lines().filter(|line| !line.starts_with('#')).collect();
    let (mut complaints, mut named) = (Vec::new(), BTreeSet::new());
    for path in files().into_iter().filter(|path| path != list && !path.ends_with(file!())) {
        for norm in pattern.find_iter(&read(&path)).map(|norm| norm.as_str()).filter(|norm| *norm != "norm:") {
            if !known.contains(norm) {
                complaints.push(format!("{}: {norm} is not in {}", path.display(), list.display()));
            }
            named.insert(norm.to_owned());
        }
    }
    let unused = known.iter().filter(|norm| !named.contains(**norm));
    complaints.extend(unused.map(|norm| format!("{}: nothing names {norm}", list.display())));
    complain(&complaints);
}
