//! `gnomon run` at a terminal: keys go through, the terminal is given back as it was.

mod pty;

use pty::{PATIENCE_MS, Shell};
use rexpect::session::spawn_command;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// U-Boot is the quickest guest with a prompt.
fn shell() -> Shell {
    let mut shell = Shell::start(Command::new("/bin/sh"), "run --kernel u-boot --memory 128M");
    shell.exp_string("Ctrl-A x ends the run").expect("how to leave");
    shell.exp_string("Hit any key to stop autoboot").expect("U-Boot");
    shell.type_in(" ");
    shell.exp_string("=> ").expect("the prompt");
    shell
}

fn expect_restored(shell: &mut Shell, status: &str) {
    let before = shell.expect_restored(status);
    assert!(!before.contains("powered off"), "the end is said once: {before}");
}

#[test]
fn keys_go_through_and_the_terminal_comes_back() {
    let mut shell = shell();
    // A key that would be a signal goes to the guest.
    shell.type_in("\x03");
    shell.exp_string("=> ").expect("another prompt");
    shell.type_in("poweroff\r");
    shell.exp_string("gnomon: u-boot powered off").expect("the end");
    expect_restored(&mut shell, "0");
}

#[test]
fn the_end_key_ends_everything() {
    let mut shell = shell();
    shell.type_in("\x01x");
    shell.exp_string("gnomon: u-boot was stopped by request").expect("the end");
    expect_restored(&mut shell, "0");
}

#[test]
fn keys_pause_a_vm_let_it_go_on_and_end_it() {
    let mut shell = shell();
    shell.type_in("\x01p");
    shell.exp_string("gnomon: u-boot is paused").expect("a word of it");
    // The keys wait in its UART; had it run, the prompt's echo would come before the next message.
    shell.type_in("echo a''b\r");
    std::thread::sleep(Duration::from_millis(500));
    shell.type_in("\x01p");
    let meanwhile = shell.exp_string("gnomon: u-boot goes on").expect("a word of it");
    assert!(!meanwhile.contains("ab"), "it ran: {meanwhile}");
    shell.exp_string("ab").expect("the answer");
    shell.type_in("\x01k");
    shell.exp_string("gnomon: u-boot was stopped: by Ctrl-A k").expect("the end");
    expect_restored(&mut shell, "3");
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let mut shell = shell();
    shell.kill();
    expect_restored(&mut shell, "143");
}

#[test]
fn a_killed_run_leaves_the_terminal_as_it_was() {
    let mut shell = shell();
    shell.kill_by("KILL");
    expect_restored(&mut shell, "137");
}

#[test]
fn a_run_that_is_stopped_gives_the_terminal_back_until_it_continues() {
    let mut shell = shell();
    shell.kill_by("TSTP");
    shell.exp_string("Stopped").expect("the shell's word of it");
    shell.expect_given_back();
    shell.send_line("fg").expect("typing");
    shell.wait_for_raw();
    // A key that would be a signal goes to the guest again.
    shell.type_in("\x03");
    shell.exp_string("=> ").expect("another prompt");
    shell.type_in("poweroff\r");
    shell.exp_string("gnomon: u-boot powered off").expect("the end");
    expect_restored(&mut shell, "0");
}

/// Starts a script that runs U-Boot, and prints `after STATUS` then.
fn script(dir: &Path, run: &str) -> Shell {
    let script = dir.join("script");
    std::fs::write(&script, format!("{run}; echo after $?\n")).expect("a script");
    Shell::start_by(Command::new("/bin/sh"), &format!("sh {}", script.display()))
}

/// The commands of scripts. The output of the second one is no terminal.
const RUN: &str = "sh -c 'echo pid $$.; exec $GNOMON run --kernel u-boot --memory 128M'";
const PIPED: &str = "sh -c 'echo pid $$. >/dev/tty; exec $GNOMON run --kernel u-boot --memory 128M' | cat";

#[test]
fn ctrl_z_stops_a_script_with_its_machine_until_it_continues() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut shell = script(dir.path(), PIPED);
    shell.exp_string("Hit any key to stop autoboot").expect("U-Boot");
    // Without a terminal at the output, keys come by lines, and Ctrl-Z is the shell's.
    shell.type_in("\n\x1a");
    shell.exp_string("Stopped").expect("the shell's word of it");
    shell.wait_for_stop(true);
    shell.expect_given_back();
    shell.send_line("fg").expect("typing");
    shell.wait_for_stop(false);
    shell.send_line("\npoweroff").expect("typing");
    shell.exp_string("gnomon: u-boot powered off").expect("the end");
    shell.exp_string("after 0").expect("the script goes on");
    expect_restored(&mut shell, "0");
}

#[test]
fn a_script_goes_on_at_its_terminal_after_its_run_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut shell = script(dir.path(), RUN);
    shell.exp_string("Hit any key to stop autoboot").expect("U-Boot");
    shell.wait_for_raw();
    shell.kill_by("KILL");
    shell.exp_string("after 137").expect("the script goes on");
    // The guard gives it back.
    std::thread::sleep(Duration::from_secs(1));
    expect_restored(&mut shell, "0");
}

#[test]
fn a_shell_knows_the_terminals_size() {
    let mut command = Command::new("/bin/sh");
    command.env("GNOMON", env!("CARGO_BIN_EXE_gnomon")).env("LEAN", gnomon::guest::debian::LEAN);
    command.args(["-c", "stty rows 41 cols 133; exec $GNOMON run --memory 128M --append \"$LEAN\""]);
    let mut shell = spawn_command(command, Some(PATIENCE_MS)).expect("a terminal");
    shell.exp_string("linux:~# ").expect("the prompt");
    shell.send("stty size; exit\r").expect("typing");
    shell.flush().expect("typing");
    shell.exp_string("\n41 133").expect("the size");
    shell.exp_string("gnomon: linux powered off").expect("the end");
    shell.exp_eof().expect("the end");
}

/// Keys arrive at any moment of the VMs' lives: while one starts, while it is paused, while no VM exists.
#[test]
fn vms_that_follow_each_other_can_be_ended_as_they_come() {
    let names: Vec<String> = (0..8).map(|place| format!("v{place}")).collect();
    let dir = tempfile::tempdir().expect("a directory");
    for (place, name) in names.iter().enumerate() {
        let after = place.checked_sub(1).map(|before| format!("after = \"{}\"\n", names[before])).unwrap_or_default();
        let mode = ["shadow", "lazy", "unsync", "two-stage"][place % 4];
        let (memory, vcpus) = (64 + 16 * (place % 3), 1 + place % 5);
        let rest = format!("kernel = \"u-boot\"\nmmu = \"{mode}\"\nmemory = \"{memory}M\"\nvcpus = {vcpus}\n");
        std::fs::write(dir.path().join(format!("{name}.toml")), after + &rest).expect("a VM file");
    }
    let mut command = Command::new("/bin/sh");
    command.env("GNOMON", env!("CARGO_BIN_EXE_gnomon")).current_dir(dir.path());
    let files = names.iter().map(|name| format!("{name}.toml")).collect::<Vec<_>>().join(" ");
    command.args(["-c", &format!("$GNOMON run --harts 2 {files}; echo status $?; read line")]);
    let mut shell = spawn_command(command, Some(PATIENCE_MS)).expect("a terminal");
    shell.exp_string("gnomon: v0: mmu = shadow").expect("the first starts");
    let (mut all, started) = (String::new(), Instant::now());
    for round in 0.. {
        all.extend(std::iter::from_fn(|| shell.try_read()));
        if all.contains("status ") {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{all}");
        shell.send(if round % 3 == 0 { "\x01p\x01k" } else { "\x01k" }).expect("typing");
        shell.flush().expect("typing");
        std::thread::sleep(Duration::from_millis(5 * (round % 16)));
    }
    let place = |text: String| all.find(&text).unwrap_or_else(|| panic!("no {text:?} in {all}"));
    let ends: Vec<_> = names.iter().map(|name| place(format!("gnomon: {name} was stopped: by Ctrl-A k"))).collect();
    assert!(ends.is_sorted() && place("status 3".into()) > ends[7], "{all}");
}
