//! What a page in Markdown refers to.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// What is looked at.
#[derive(Debug, Default)]
pub struct Page {
    /// Where its links lead.
    pub links: Vec<String>,
    /// What its headings are called in links.
    pub anchors: Vec<String>,
    /// What stands in back-ticks within its text.
    pub code: Vec<String>,
    /// The cells of its tables, as they are written.
    pub cells: Vec<String>,
}

impl Page {
    /// Reads it.
    pub fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
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

/// What a heading is called in links, on the sites that show repositories.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}
