//! Completions and man pages, made of the description of the command line.

use super::tree::{Entry, Layout, Tree};
use clap::Command;
use clap_complete::{Generator, Shell, generate};
use clap_mangen::Man;
use flate2::{Compression, GzBuilder};
use std::io::Write;
use std::path::Path;

/// The command's name.
const NAME: &str = "gnomon";

/// The completions of each shell, and the command's and each subcommand's man page.
pub(super) fn tree(cli: &Command, layout: Layout) -> Tree {
    let zsh = match layout {
        Layout::Plain => "share/zsh/site-functions",
        Layout::Debian => "share/zsh/vendor-completions",
    };
    let places = [
        (Shell::Bash, "share/bash-completion/completions", "gnomon"),
        (Shell::Zsh, zsh, "_gnomon"),
        (Shell::Fish, "share/fish/vendor_completions.d", "gnomon.fish"),
    ];
    let completions = places.map(|(shell, dir, name)| (Path::new(dir).join(name), Entry::Data(completion(shell, cli))));
    let mut cli = cli.clone().disable_help_subcommand(true);
    cli.build();
    let shown = cli.get_subcommands().filter(|command| !command.is_hide_set());
    let pages = shown.chain([&cli]).map(|command| {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        (Path::new("share/man/man1").join(format!("{name}.1.gz")), Entry::Data(compressed(&page(command))))
    });
    completions.into_iter().chain(pages).collect()
}

fn completion(shell: impl Generator, cli: &Command) -> Vec<u8> {
    // A shell would propose the subcommands that only Gnomon uses.
    let shown = cli.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut shown =
        Command::new(NAME).version(env!("CARGO_PKG_VERSION")).args(cli.get_arguments().cloned()).subcommands(shown);
    let mut text = Vec::new();
    generate(shell, &mut shown, NAME, &mut text);
    text
}

fn page(command: &Command) -> Vec<u8> {
    let mut text = Vec::new();
    // A vector takes everything.
    let _ = Man::new(command.clone())
        .manual("Gnomon")
        .source(concat!("gnomon ", env!("CARGO_PKG_VERSION")))
        .render(&mut text);
    text
}

/// Compresses a text; the same text always to the same bytes.
pub(super) fn compressed(text: &[u8]) -> Vec<u8> {
    let mut writer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    let written = writer.write_all(text).and_then(|()| writer.finish());
    written.unwrap_or_default()
}
