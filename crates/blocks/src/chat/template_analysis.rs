//! Whether a template looks into messages' contents, or only passes them on.
//!
//! Most templates print a content as it is, and ask of it no more than whether some tag is in it, which it
//! seldom is. Then the text around the contents depends on nothing but the messages' roles and number. Contents
//! are followed through all that a template may do ([`taint`]); what comes of it are the terms on which that
//! holds, or none, if something is done to a content that is not known to treat all contents alike.
mod taint;

use aho_corasick::AhoCorasick;
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

/// Stands for a content, followed by a number.
const PRIVATE: char = '\u{f8ff}';
/// The number 0, as a character that nobody uses either.
const FIRST_NUMBER: u32 = 0xF_0000;
/// How many contents can be told apart.
pub(super) const MOST_CONTENTS: usize = 4096;

/// What contents must not be, for a template to treat them all alike.
#[derive(Debug, Default)]
pub(super) struct TemplateAnalysis {
    /// The bytes of the longest text that one is compared with: contents are longer.
    longest: usize,
    beginnings: Vec<String>,
    endings: Vec<String>,
    parts: Vec<String>,
    /// Finds any of those.
    finder: Option<AhoCorasick>,
    /// What is stripped off a content's ends.
    stripped: Vec<char>,
    strips_space: bool,
}

impl TemplateAnalysis {
    /// The terms of a template, unless it may look into contents.
    pub(super) fn of(source: &str, syntax: SyntaxConfig) -> Option<Self> {
        let template = parse(source, "", syntax).ok()?;
        let mut terms = taint::follow(&template)?;
        if !terms.parts.is_empty() {
            terms.finder = Some(AhoCorasick::new(&terms.parts).ok()?);
        }
        (0..MOST_CONTENTS).all(|number| terms.allow(&terms.stand_in(number))).then_some(terms)
    }

    /// Whether a content is one of those that are treated alike.
    pub(super) fn allow(&self, content: &str) -> bool {
        let is_stripped = |c: char| {
            self.stripped.contains(&c) || self.strips_space && (c.is_whitespace() || c.is_control())
        };
        content.len() > self.longest
            && !content.starts_with(is_stripped)
            && !content.ends_with(is_stripped)
            && !self.beginnings.iter().any(|text| content.starts_with(text))
            && !self.endings.iter().any(|text| content.ends_with(text))
            && !self.finder.as_ref().is_some_and(|finder| finder.is_match(content))
    }

    /// A content that is allowed by all terms, and found again by [`next_stand_in`].
    pub(super) fn stand_in(&self, number: usize) -> String {
        let mut text: String = std::iter::repeat_n(PRIVATE, self.longest / 3 + 1).collect();
        text.extend(char::from_u32(FIRST_NUMBER + number as u32));
        text
    }
}

/// The text before the first stand-in of `text`, its number, and the text after it.
pub(super) fn next_stand_in(text: &str) -> Option<(&str, usize, &str)> {
    let start = text.find(PRIVATE)?;
    let rest = text[start..].trim_start_matches(PRIVATE);
    let last = rest.chars().next()?;
    let number = u32::from(last).checked_sub(FIRST_NUMBER)? as usize;
    Some((&text[..start], number, &rest[last.len_utf8()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(source: &str) -> Option<TemplateAnalysis> {
        TemplateAnalysis::of(source, super::super::syntax())
    }

    /// A template that has `m`, a message, and `c`, its content.
    fn looped(body: &str) -> String {
        format!("{{% for m in messages %}}{{% set c = m.content %}}{body}{{% endfor %}}")
    }

    #[test]
    fn what_is_asked_of_contents_becomes_their_terms() {
        for (body, allowed, refused) in [
            ("{{ m.role + ': ' + c + '\n' }}", "any", ""),
            ("{{ m['content'] ~ 1 }}{{ m.get('content') }}", "any", ""),
            ("{% if c.startswith('<a>') and not c.endswith('</a>') %}A{% endif %}", "<a", "<a>b"),
            ("{% if c.endswith('</a>') %}A{% endif %}", "</a>b", "b</a>"),
            ("{% if '<t>' in c %}{{ c.split('<t>')[-1].lstrip('\n') }}{% endif %}", "ab", "b<t>a"),
            ("{{ c.strip() }}", "a b", "a b\n"),
            ("{{ c | trim }}", "a b", "\u{a0}a"),
            ("{{ c.lstrip('xy') }}", "ax a", "xa"),
            ("{{ c.replace('a', '') }}{{ c | replace('b', '') }}", "c", "cb"),
            ("{{ c.removeprefix('a').removesuffix('b') }}", "ba", "ab"),
            ("{% if c == 'abc' or c in ['abcd', ''] %}A{% endif %}", "abcde", "abcf"),
            ("{% if 'none' != c %}{{ c }}{% endif %}", "abcde", "none"),
            ("{% if c is string and m.content is not mapping %}{{ c }}{% endif %}", "a", ""),
            ("{% if m.content is string %}{{ c }}{% else %}{{ c | length }}{% endif %}", "a", ""),
            ("{% if m.content is not string %}{{ c[0] }}{% endif %}", "a", ""),
            (
                "{% if m.role == 'user' and loop.index0 > 1 and loop.nextitem is defined %}{{ c }}{% endif %}",
                "a",
                "",
            ),
            ("{% set x %}<{{ c }}>{% endset %}{{ x }}", "a", ""),
            (
                "{% set n = namespace(x='') %}{% set n.x = n.x ~ c %}{% if n.x != 'ab' %}{{ n.x }}{% endif %}",
                "abc",
                "ab",
            ),
            ("{{ raise_exception('no ' + c) if m.role == 'tool' else c }}", "a", ""),
            (
                "{{ c | default('') | string }}{{ messages | length }}{{ (messages[1:] | last).content }}",
                "a",
                "",
            ),
            (
                "{% if 'tool_calls' in m or m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{{ c }}",
                "a",
                "",
            ),
            ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(m.role) + c }}", "a", ""),
            ("{{ (messages | selectattr('role', 'equalto', 'user') | list)[0].content }}", "a", ""),
        ] {
            let source = looped(body);
            let terms = terms(&source).unwrap_or_else(|| panic!("no terms: {body}"));
            assert!(terms.allow(allowed), "{body}: {allowed:?}");
            assert!(!terms.allow(refused), "{body}: {refused:?}");
        }
    }

    #[test]
    fn a_template_that_may_look_into_contents_has_no_terms() {
        for body in [
            "{{ c | length }}",
            "{{ c[0] }}",
            "{{ c[:3] }}",
            "{{ c | upper }}",
            "{{ c.title() }}",
            "{{ c * 2 }}",
            "{{ '%s' % c }}",
            "{{ c | tojson }}",
            "{{ m }}",
            "{{ messages }}",
            "{{ m | tojson }}",
            "{{ [c] }}",
            "{{ [c] | join }}",
            "{{ {'a': c} }}",
            "{% for x in c %}{{ x }}{% endfor %}",
            "{% for x in m %}{{ x }}{% endfor %}",
            "{% if c < 'b' %}A{% endif %}",
            "{% if c == bos_token %}A{% endif %}",
            "{% if c == messages[0].content %}A{% endif %}",
            "{% if bos_token in c %}A{% endif %}",
            "{% if c in bos_token %}A{% endif %}",
            "{% if c is upper %}A{% endif %}",
            "{% if m.role is eq(c) %}A{% endif %}",
            "{% if c.startswith(bos_token) %}A{% endif %}",
            "{% if ('<' + c).startswith('<a') %}A{% endif %}",
            "{% if '<a>' in '<' ~ c %}A{% endif %}",
            "{% if messages[0].content in c %}A{% endif %}",
            "{{ c.split() | length }}",
            "{{ c.split('a') | length }}",
            "{{ c.partition('a')[0] }}",
            "{{ ''.join([c]) }}",
            "{{ loop.previtem.content }}",
            "{{ (loop | attr('previtem')).content | length }}",
            "{{ [loop] | map(attribute='previtem') | list }}",
            "{{ range() | length }}{% macro range() %}{{ messages[0].content }}{% endmacro %}",
            "{% set range = c %}{{ range() }}",
            "{{ loop.cycle(c, 'a') }}",
            "{% set n = namespace(x=c) %}{{ n }}",
            "{% set n = namespace(x='') %}{% set n.x = c %}{{ n.x | length }}",
            "{% set x = messages %}{% set x = m.role %}{{ x[0] }}",
            "{{ x | length }}{% set x = c %}",
            "{% macro f(x) %}{{ x | length }}{% endmacro %}{{ f(c) }}",
            "{% macro f(m) %}{% if m.content is not string %}{{ messages[0].content | length }}{% endif %}{% endmacro %}{{ f({}) }}",
            "{% filter upper %}{{ c }}{% endfilter %}",
            "{{ strftime_now('%Y') }}",
            "{{ debug() }}",
            "{{ m.items() | list }}",
            "{{ m[m.role] }}",
            "{% if '\\uf8ff' in c %}A{% endif %}",
        ] {
            assert!(terms(&looped(body)).is_none(), "{body}");
        }
    }

    #[test]
    fn the_time_may_be_asked_for_by_name_alone() {
        assert!(terms("{% if strftime_now is defined %}A{% endif %}").is_some());
    }

    #[test]
    fn stand_ins_are_found_again() {
        let terms = TemplateAnalysis { longest: 10, ..TemplateAnalysis::default() };
        let text = format!("a{}{}b", terms.stand_in(7), terms.stand_in(4095));
        let (before, number, after) = next_stand_in(&text).unwrap();
        assert_eq!((before, number), ("a", 7));
        assert_eq!(next_stand_in(after), Some(("", 4095, "b")));
        assert_eq!(next_stand_in("\u{f8ff}a"), None);
        assert_eq!(next_stand_in("\u{f8ff}"), None);
    }
}
