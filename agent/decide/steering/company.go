// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package steering

// company says whether others used the GPU at the same time. A tenant's costs are estimated in company otherwise than alone,
// for other tenants' slices are in the measurements then; so both are kept apart.
type company int

const (
	alone company = iota
	together
	mixed // neither of them throughout, or not certain

	companies = int(mixed) // how many kinds things are kept of
)

// other is the other one of the two pure kinds.
func (c company) other() company { return together - c }

// companyOf tells what company a tenant had between two moments. Where there is no pure period for mixedFor, what there was
// more of is taken for all of it.
func (m *member) companyOf(before, after moment) company {
	span := after.at - before.at
	lonely, shared := after.company[alone]-before.company[alone], after.company[together]-before.company[together]
	switch {
	case lonely >= scaled(span, purity):
		return alone
	case shared >= scaled(span, purity):
		return together
	case after.at-m.scale.pure < mixedFor:
		return mixed
	case lonely > shared:
		return alone
	}
	return together
}
