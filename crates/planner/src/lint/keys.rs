//! The members of a JSON object in one order, without parsing their values.

/// The text with the members of its first JSON object sorted; as it is, if it has none.
pub(super) fn in_one_order(text: &str) -> String {
    let Some(start) = text.find('{') else { return text.to_owned() };
    let Some((mut members, end)) = members(&text[start..]) else { return text.to_owned() };
    members.sort_unstable();
    format!("{}{{{}}}{}", &text[..start], members.join(","), &text[start + end..])
}

/// The trimmed members of the object at the beginning of `text`, and where it ends.
fn members(text: &str) -> Option<(Vec<&str>, usize)> {
    let (mut depth, mut start) = (0_usize, 1);
    let (mut quoted, mut escaped) = (false, false);
    let mut all = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        if quoted {
            quoted = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'{' | b'[' => depth += 1,
            b',' if depth == 1 => {
                all.push(text[start..at].trim());
                start = at + 1;
            }
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    all.push(text[start..at].trim());
                    return all
                        .iter()
                        .all(|member| member.starts_with('"'))
                        .then_some((all, at + 1));
                }
            }
            _ => {}
        }
    }
    None
}
