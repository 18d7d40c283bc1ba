# Writes man pages of section 3 from untorn.h: untorn.3 from the comment at its head, and a page for each function from the
# comment above it.
#
#   awk -v version=0.1.0 -v to=DIRECTORY -f scripts/man3.awk include/untorn.h

# Text for roff: no line of it is a request, and no character a command.
function escaped(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    gsub(/…/, "...", text)
    sub(/^[.']/, "\\\\\\&&", text)
    # Names of functions and constants stand out; `words` are code.
    gsub(/`[^`]*`/, "\\fB&\\fR", text)
    gsub(/`/, "", text)
    text = marked(text)
    return text
}

function marked(text,    rest, out, word) {
    out = ""
    rest = text
    while (match(rest, /untorn_[a-z_0-9]+\(\)/)) {
        word = substr(rest, RSTART, RLENGTH - 2)
        out = out substr(rest, 1, RSTART - 1) "\\fB" word "\\fR()"
        rest = substr(rest, RSTART + RLENGTH)
    }
    return out rest
}

function head(name, file) {
    print ".\\\" Made from untorn.h by scripts/man3.awk" > file
    print ".TH \"" toupper(name) "\" \"3\" \"\" \"Untorn " version "\" \"Untorn\"" > file
    print ".SH NAME" > file
}

# The first sentence, for the index.
function summary(text,    at) {
    at = match(text, /[.:;]( |$)/)
    if (at) text = substr(text, 1, at - 1)
    sub(/\. .*/, "", text)
    sub(/\.$/, "", text)
    return tolower(substr(text, 1, 1)) substr(text, 2)
}

function page(name, declaration, text,    file, n, i, lines, paragraphs) {
    file = to "/" name ".3"
    head(name, file)
    gsub(/`/, "", first)
    print name " \\- " escaped(summary(first)) > file
    print ".SH SYNOPSIS\n.nf\n.B #include <untorn.h>\n.PP" > file
    n = split(declaration, lines, "\n")
    for (i = 1; i <= n; i++) print ".B \"" escaped(lines[i]) "\"" > file
    print ".fi\n.PP\nLink with \\fI\\-luntorn\\fR.\n.SH DESCRIPTION" > file
    print text > file
    print ".SH ERRORS\nA call that fails sets \\fIerrno\\fR. \\fBuntorn_last_error\\fR(3) tells kinds of errors apart, and" > file
    print "\\fBuntorn_error_message\\fR(3) says what happened and what to do." > file
    print ".SH SEE ALSO\n.BR untorn (3)" > file
    close(file)
    pages[name] = escaped(summary(first))
    order[++count] = name
}

# The comment at the head of the file.
NR == 1 && /^\/\*/ { in_head = 1; next }
in_head && /^ \*\// { in_head = 0; next }
in_head {
    sub(/^ \* ?/, "")
    if ($0 == "") overview = overview "\n.PP"
    else if (/^ /) {
        gsub(/\\/, "\\e")
        gsub(/-/, "\\-")
        overview = overview "\n.nf\n" $0 "\n.fi"
    } else if (match($0, /^[A-Z][A-Z ]+\. /)) {
        overview = overview "\n.SH " substr($0, 1, RLENGTH - 2) "\n" escaped(substr($0, RLENGTH + 1))
    } else overview = overview "\n" escaped($0)
    next
}

# A comment of one line, or of several.
/^\/\*\* .*\*\/$/ {
    first = $0
    sub(/^\/\*\* /, "", first)
    sub(/ \*\/$/, "", first)
    comment = escaped(first)
    next
}
/^\/\*\*$/ { comment = ""; first = ""; in_comment = 1; next }
in_comment && /^ \*\/$/ { in_comment = 0; next }
in_comment {
    sub(/^ \* ?/, "")
    if (first == "" || first !~ /[.:;]( |$)/) first = first (first == "" ? "" : " ") $0
    comment = comment (comment == "" ? "" : "\n") ($0 == "" ? ".PP" : escaped($0))
    next
}

/^UNTORN_MUST_USE$/ { next }
{ sub(/^UNTORN_MUST_USE /, "") }

# A declaration, which may go on over lines.
/^[a-z].*untorn_[a-z_0-9]+\(/ && !/^typedef/ { declaration = ""; in_declaration = 1 }
in_declaration {
    declaration = declaration (declaration == "" ? "" : "\n") $0
    if (/;$/) {
        in_declaration = 0
        name = declaration
        sub(/\(.*/, "", name)
        sub(/.*[ *]/, "", name)
        page(name, declaration, comment)
        comment = first = ""
    }
    next
}
/^$/ { comment = first = "" }

END {
    file = to "/untorn.3"
    head("untorn", file)
    print "untorn \\- all\\-or\\-nothing updates of application data in files" > file
    print ".SH SYNOPSIS\n.nf\n.B #include <untorn.h>\n.fi\n.PP\nLink with \\fI\\-luntorn\\fR.\n.SH DESCRIPTION" overview > file
    print ".SH FUNCTIONS" > file
    for (i = 1; i <= count; i++) {
        print ".TP\n.BR " order[i] " (3)\n" pages[order[i]] > file
    }
    close(file)
}
