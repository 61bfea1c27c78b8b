//! Starts the program of a session.

use crate::sys::{self, EACCES, ENOENT, ENOTDIR, Errno, Fd};
use abi::agent::Open;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use programs::linux::exit;
use programs::users::{self, User};

/// Most bytes of a file of users.
const MOST_USERS: usize = 256 << 10;
/// The directories in which programs are searched.
const PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Statuses of programs that cannot be started, as in shells.
const CANNOT: usize = 126;
const NOT_FOUND: usize = 127;

/// A program that was started, and the agent's ends of its streams.
#[derive(Debug)]
pub struct Started {
    /// The process, and its group.
    pub process: usize,
    /// The end that its input is written to. `None`: the terminal is.
    pub input: Option<Fd>,
    /// The end of standard output, or its terminal.
    pub out: Fd,
    /// The end of standard error, without a terminal.
    pub error: Option<Fd>,
}

fn read(path: &core::ffi::CStr) -> Vec<u8> {
    Fd::open(path, false).map(|file| file.read_all(MOST_USERS)).unwrap_or_default()
}

/// A word for Linux. Words of a sound [`Open`] have no byte 0.
fn word(bytes: &[u8]) -> CString {
    CString::new(bytes).unwrap_or_default()
}

/// The program, as Linux is told of it.
struct Program {
    /// The files to try, in order.
    paths: Vec<CString>,
    arguments: Vec<CString>,
    variables: Vec<CString>,
    /// Directories to try, and whether the first one must be there.
    directories: Vec<CString>,
    needs_directory: bool,
    user: User,
    groups: Vec<u32>,
}

impl Program {
    fn of(open: &Open) -> Result<Self, String> {
        let name = open.user.as_ref().map_or(&b"root"[..], |user| &user.0);
        let user = users::find(&read(c"/etc/passwd"), name).or_else(|| (name == b"root").then(User::root));
        let user = user.ok_or_else(|| format!("there is no user `{}`", String::from_utf8_lossy(name)))?;
        let groups = users::groups(&read(c"/etc/group"), &user);
        let mut variables: Vec<Vec<u8>> = Vec::new();
        let mut set = |variable: Vec<u8>| {
            let name = |variable: &[u8]| variable.iter().position(|byte| *byte == b'=').unwrap_or_default();
            let same = |known: &Vec<u8>| known[..name(known)] == variable[..name(&variable)];
            variables.retain(|known| !same(known));
            variables.push(variable);
        };
        set([b"PATH=", PATH].concat());
        for (name, value) in
            [("HOME=", &user.home), ("USER=", &user.name), ("LOGNAME=", &user.name), ("SHELL=", &user.shell)]
        {
            set([name.as_bytes(), value].concat());
        }
        open.env.iter().for_each(|variable| set(variable.0.clone()));
        let search = variables.iter().find_map(|variable| variable.strip_prefix(b"PATH=")).unwrap_or(PATH);
        let (paths, arguments) = match open.words.first() {
            None => {
                let shell = user.shell.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                (vec![word(&user.shell)], vec![word(&[b"-", shell].concat())])
            }
            Some(first) => {
                let first = &first.0;
                let paths = if first.contains(&b'/') {
                    vec![word(first)]
                } else {
                    search.split(|byte| *byte == b':').map(|dir| word(&[dir, b"/", first].concat())).collect()
                };
                (paths, open.words.iter().map(|argument| word(&argument.0)).collect())
            }
        };
        let directories = match &open.cwd {
            Some(cwd) => vec![word(&cwd.0)],
            None => vec![word(&user.home), word(b"/")],
        };
        let variables = variables.iter().map(|variable| word(variable)).collect();
        let needs_directory = open.cwd.is_some();
        Ok(Self { paths, arguments, variables, directories, needs_directory, user, groups })
    }

    /// Becomes the program, with these streams.
    fn become_it(&self, streams: [&Fd; 3], is_terminal: bool) -> ! {
        sys::new_session();
        for (number, stream) in streams.into_iter().enumerate() {
            // The agent's own descriptors 0, 1 and 2 are open, so no stream has one of these numbers.
            if stream.become_number(number).is_err() {
                exit(CANNOT);
            }
        }
        let fail = |status, what: &[u8], why: &str| -> ! {
            let _ = streams[2].write(&[b"gnomon: ", what, b": ", why.as_bytes(), b"\n"].concat());
            exit(status)
        };
        if is_terminal && let Err(errno) = streams[0].control() {
            fail(CANNOT, b"the terminal", &format!("error {errno}"));
        }
        sys::reset_signals();
        sys::set_umask(0o22);
        if let Err(errno) = sys::become_user(self.user.uid, &self.groups) {
            fail(CANNOT, &self.user.name, &format!("cannot become this user: error {errno}"));
        }
        let is_there = self.directories.iter().any(|directory| sys::change_directory(directory).is_ok());
        if self.needs_directory && !is_there {
            fail(CANNOT, self.directories[0].as_bytes(), "cannot enter this directory");
        }
        let list = |words: &[CString]| -> Vec<usize> {
            words.iter().map(|word| word.as_ptr().expose_provenance()).chain([0]).collect()
        };
        let (arguments, variables) = (list(&self.arguments), list(&self.variables));
        let mut worst = ENOENT;
        for path in &self.paths {
            match sys::exec(path, &arguments, &variables) {
                ENOENT | ENOTDIR => {}
                errno => worst = errno,
            }
            if worst != ENOENT && worst != EACCES {
                break;
            }
        }
        let name = self.arguments.first().map_or(&b"program"[..], |name| name.as_bytes());
        match worst {
            ENOENT => fail(NOT_FOUND, name, "not found"),
            EACCES => fail(CANNOT, name, "permission denied"),
            errno => fail(CANNOT, name, &format!("cannot be executed: error {errno}")),
        }
    }
}

fn why(what: &'static str) -> impl Fn(Errno) -> String {
    move |errno| format!("{what}: error {errno}")
}

/// Starts a program.
///
/// # Errors
/// The reason, for the user.
pub fn start(open: &Open) -> Result<Started, String> {
    if !open.is_sound() {
        return Err("its words are too many, or wrong".into());
    }
    let program = Program::of(open)?;
    let no_process = why("no process");
    if let Some(size) = open.terminal {
        let (own, other) = sys::terminal().map_err(why("no pseudo-terminal"))?;
        own.resize(size.lines, size.columns);
        other.give_to(program.user.uid);
        let process = sys::fork().map_err(no_process)?;
        if process == 0 {
            program.become_it([&other, &other, &other], true);
        }
        own.set_blocking(false).map_err(why("its terminal"))?;
        return Ok(Started { process, input: None, out: own, error: None });
    }
    let pipe = || sys::pipe().map_err(why("no pipe"));
    let ((its_input, input), (out, its_out), (error, its_error)) = (pipe()?, pipe()?, pipe()?);
    let process = sys::fork().map_err(no_process)?;
    if process == 0 {
        program.become_it([&its_input, &its_out, &its_error], false);
    }
    for own in [&input, &out, &error] {
        own.set_blocking(false).map_err(why("its pipes"))?;
    }
    Ok(Started { process, input: Some(input), out, error: Some(error) })
}
