// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package top

import "charm.land/bubbles/v2/key"

// keyMap is what the keys do; the help is made of it.
type keyMap struct {
	up, down, pageUp, pageDown, first, last    key.Binding
	other, detail, paneUp, paneDown            key.Binding
	sort, reverse, filter, clear, pause, fetch key.Binding
	help, suspend, quit                        key.Binding
}

func keys() keyMap {
	bind := func(keys []string, shown, does string) key.Binding {
		return key.NewBinding(key.WithKeys(keys...), key.WithHelp(shown, does))
	}
	return keyMap{
		up:       bind([]string{"up", "k"}, "↑/k", "up"),
		down:     bind([]string{"down", "j"}, "↓/j", "down"),
		pageUp:   bind([]string{"pgup", "ctrl+b"}, "pgup", "a page up"),
		pageDown: bind([]string{"pgdown", "ctrl+f"}, "pgdn", "a page down"),
		first:    bind([]string{"home", "g"}, "home/g", "first"),
		last:     bind([]string{"end", "G"}, "end/G", "last"),
		other:    bind([]string{"tab", "shift+tab"}, "tab", "GPUs or slices"),
		detail:   bind([]string{"enter", "d"}, "enter", "why"),
		paneUp:   bind([]string{"K", "shift+up", "["}, "[", "scroll up"),
		paneDown: bind([]string{"J", "shift+down", "]"}, "]", "scroll down"),
		sort:     bind([]string{"s", "right"}, "s", "sort by next"),
		reverse:  bind([]string{"r"}, "r", "reverse"),
		filter:   bind([]string{"/"}, "/", "filter"),
		clear:    bind([]string{"esc"}, "esc", "clear"),
		pause:    bind([]string{"space", "p"}, "space", "pause"),
		fetch:    bind([]string{"f", "ctrl+l"}, "f", "look now"),
		help:     bind([]string{"?", "h"}, "?", "help"),
		suspend:  bind([]string{"ctrl+z"}, "ctrl+z", "suspend"),
		quit:     bind([]string{"q", "ctrl+c"}, "q", "quit"),
	}
}

// ShortHelp implements help.KeyMap.
func (k keyMap) ShortHelp() []key.Binding {
	return []key.Binding{k.help, k.quit, k.detail, k.other, k.sort, k.filter, k.pause}
}

// FullHelp implements help.KeyMap.
func (k keyMap) FullHelp() [][]key.Binding {
	return [][]key.Binding{
		{k.up, k.down, k.pageUp, k.pageDown, k.first, k.last, k.other},
		{k.detail, k.paneUp, k.paneDown, k.sort, k.reverse, k.filter, k.clear},
		{k.pause, k.fetch, k.help, k.suspend, k.quit},
	}
}
