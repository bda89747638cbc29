//! Finds out whether a template's output depends on the contents of messages beyond printing them.
//!
//! Most templates print contents unchanged, and test only whether a content contains some tag,
//! which it seldom does. Then the text around the contents depends only on the roles and the number
//! of messages. A taint analysis follows contents through the template ([`taint`]). Its result is
//! the conditions under which all contents are treated alike, or none if the template does
//! something else with a content.

mod taint;

use aho_corasick::AhoCorasick;
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

/// The private-use character of placeholders, which a number follows.
const PRIVATE: char = '\u{f8ff}';
/// The number 0, as another private-use character.
const FIRST_NUMBER: u32 = 0xF_0000;
/// The number of distinct placeholders.
pub(super) const MAX_CONTENTS: usize = 4096;

/// Conditions on contents under which a template treats all of them alike.
#[derive(Debug, Default)]
pub(super) struct TemplateAnalysis {
    /// The bytes of the longest text that a content is compared with: contents must be longer.
    longest: usize,
    /// Texts with which no content may begin.
    beginnings: Vec<String>,
    /// Texts with which no content may end.
    endings: Vec<String>,
    /// Texts that no content may contain.
    parts: Vec<String>,
    /// Finds any of `parts`.
    finder: Option<AhoCorasick>,
    /// Characters that the template strips off contents.
    stripped: Vec<char>,
    strips_space: bool,
}

impl TemplateAnalysis {
    /// The conditions of a template; `None` if its output may depend on contents otherwise.
    pub(super) fn of(source: &str, syntax: SyntaxConfig) -> Option<Self> {
        let template = parse(source, "", syntax).ok()?;
        let mut analysis = taint::analyse(&template)?;
        if !analysis.parts.is_empty() {
            analysis.finder = Some(AhoCorasick::new(&analysis.parts).ok()?);
        }
        let is_allowed = |number| analysis.allow(&analysis.placeholder(number));
        (0..MAX_CONTENTS).all(is_allowed).then_some(analysis)
    }

    /// Whether a content satisfies all conditions.
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

    /// A content that satisfies all conditions and that [`next_placeholder`] finds again.
    pub(super) fn placeholder(&self, number: usize) -> String {
        let mut text: String = std::iter::repeat_n(PRIVATE, self.longest / 3 + 1).collect();
        text.extend(char::from_u32(FIRST_NUMBER + number as u32));
        text
    }
}

/// A placeholder in a text.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Placeholder<'a> {
    pub(super) before: &'a str,
    pub(super) number: usize,
    pub(super) after: &'a str,
}

/// The first placeholder of `text`.
pub(super) fn next_placeholder(text: &str) -> Option<Placeholder<'_>> {
    let start = text.find(PRIVATE)?;
    let rest = text[start..].trim_start_matches(PRIVATE);
    let last = rest.chars().next()?;
    let number = u32::from(last).checked_sub(FIRST_NUMBER)? as usize;
    Some(Placeholder { before: &text[..start], number, after: &rest[last.len_utf8()..] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn analysis(source: &str) -> Option<TemplateAnalysis> {
        TemplateAnalysis::of(source, super::super::syntax())
    }

    /// A template that has `m`, a message, and `c`, its content.
    fn looped(body: &str) -> String {
        format!("{{% for m in messages %}}{{% set c = m.content %}}{body}{{% endfor %}}")
    }

    #[test]
    fn tests_of_contents_become_conditions() {
        for (body, allowed, forbidden) in [
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
            let analysis = analysis(&source).unwrap_or_else(|| panic!("no analysis: {body}"));
            assert!(analysis.allow(allowed), "{body}: {allowed:?}");
            assert!(!analysis.allow(forbidden), "{body}: {forbidden:?}");
        }
    }

    #[test]
    fn a_template_that_may_depend_on_contents_has_no_analysis() {
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
            assert!(analysis(&looped(body)).is_none(), "{body}");
        }
    }

    #[test]
    fn a_template_may_test_whether_the_time_is_defined() {
        assert!(analysis("{% if strftime_now is defined %}A{% endif %}").is_some());
    }

    #[test]
    fn placeholders_are_found_again() {
        let analysis = TemplateAnalysis { longest: 10, ..TemplateAnalysis::default() };
        let text = format!("a{}{}b", analysis.placeholder(7), analysis.placeholder(4095));
        let first = next_placeholder(&text).unwrap();
        assert_eq!((first.before, first.number), ("a", 7));
        let second = Placeholder { before: "", number: 4095, after: "b" };
        assert_eq!(next_placeholder(first.after), Some(second));
        assert_eq!(next_placeholder("\u{f8ff}a"), None);
        assert_eq!(next_placeholder("\u{f8ff}"), None);
    }
}
