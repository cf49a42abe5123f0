// The keyboard must reach boxes that scroll: code, and the boxes that the theme adds around tables after loading.
const reach = () => {
    for (const box of document.querySelectorAll(":is(pre > code, .md-typeset__scrollwrap):not([tabindex])")) box.tabIndex = 0
}
new MutationObserver(reach).observe(document.body, { childList: true, subtree: true })
reach()
