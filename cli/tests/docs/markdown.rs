//! Links, headings, code, cells and prose of a page in Markdown.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The parts of a page that the checks look at.
#[derive(Debug, Default)]
pub struct Page {
    /// The targets of its links.
    pub links: Vec<String>,
    /// The anchors of its headings.
    pub anchors: Vec<String>,
    /// The code spans of its text.
    pub code: Vec<String>,
    /// The cells of its tables, as they are written.
    pub cells: Vec<String>,
    /// Its text without code, a paragraph, heading, item or cell in each line.
    pub prose: String,
}

impl Page {
    /// Reads it.
    pub fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        let mut is_code = false;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match &event {
                Event::Start(Tag::CodeBlock(_)) => is_code = true,
                Event::End(TagEnd::CodeBlock) => is_code = false,
                Event::End(
                    TagEnd::Paragraph | TagEnd::Heading(_) | TagEnd::Item | TagEnd::TableCell | TagEnd::TableHead,
                ) => page.prose.push('\n'),
                Event::SoftBreak | Event::HardBreak => page.prose.push(' '),
                Event::Code(_) => page.prose.push('`'),
                Event::Text(piece) if !is_code => page.prose.push_str(piece),
                _ => {}
            }
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.anchors.extend(heading.take().map(|text| anchor(&text))),
                Event::Start(Tag::TableCell) => page.cells.push(text[range].trim().to_owned()),
                Event::Text(piece) => heading.iter_mut().for_each(|heading| heading.push_str(&piece)),
                Event::Code(piece) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&piece));
                    page.code.push(piece.into_string());
                }
                _ => {}
            }
        }
        page
    }
}

/// The anchor of a heading, on the sites that show repositories.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}
