//! Writes the record of a run in the background: the output of its VMs, and how they ended.

use super::background::Background;
use super::console::whose;
use super::prepare::Prepared;
use super::report::status_of;
use crate::control::ControlError;
use crate::control::kept::{Kept, Life, Log};
use crate::machine::stream::Parts;
use abi::record::VmEnd;
use std::fs::File;
use std::io::Write;

/// The record of a run in the background, while it lives.
#[derive(Debug)]
pub struct Recorder {
    kept: Kept,
    logs: Vec<(String, Log)>,
    /// Lines of several VMs' output.
    lines: Parts,
    /// The VM, by its place, of a line of which a part has come.
    current: Option<usize>,
    background: Background,
    messages: File,
    _life: Life,
}

impl Recorder {
    /// Begins the record of a run of that name.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn begin(background: &Background, name: &str, prepared: &Prepared) -> Result<Self, ControlError> {
        let (kept, life) = Kept::begin(name, &prepared.vms)?;
        let messages = kept.messages()?;
        if let Ok(file) = messages.try_clone() {
            background.set_messages(file);
        }
        let logs = prepared.vms.iter().map(|vm| (vm.clone(), kept.log(vm))).collect();
        let (lines, current, background) = (Parts::default(), None, background.clone());
        Ok(Self { kept, logs, lines, current, background, messages, _life: life })
    }

    /// Tells that the machine has booted.
    pub fn booted(&self) {
        self.background.tell(&self.kept.name);
    }

    /// Writes output to the logs. Of several VMs each line names its VM; other lines are Gnomon's.
    pub fn text(&mut self, bytes: &[u8]) {
        if let [(_, log)] = &mut self.logs[..] {
            return log.write(bytes);
        }
        for part in self.lines.push(bytes) {
            let end: &[u8] = if part.ends { b"\n" } else { b"" };
            let (place, content) = if part.begins {
                let names = self.logs.iter().map(|(name, _)| name.as_str());
                whose(&part.bytes, names).map_or((None, &part.bytes[..]), |(place, content)| (Some(place), content))
            } else {
                (self.current, &part.bytes[..])
            };
            let line = [content, end].concat();
            match place {
                Some(place) => self.logs[place].1.write(&line),
                // As many as there are events in the lives of VMs.
                None => _ = self.messages.write_all(&line),
            }
            self.current = place;
        }
    }

    /// Notes the end of a VM.
    pub fn vm_ended(&self, end: &VmEnd) {
        self.kept.end_vm(&end.vm, status_of(end));
    }

    /// Notes the end of the run.
    pub fn ended(&self, status: u8) {
        self.kept.end(status);
    }
}
