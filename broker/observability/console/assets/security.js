// ACLs and users.

import { act, ask } from './api.js'
import { deletion, dialog } from './forms.js'
import { button, el, heading, notes, pager, panel, search, table, tone } from './views.js'

function aclForm(words) {
  dialog('Add an ACL', [
    { name: 'principal', label: 'Principal', value: 'User:', required: true },
    { name: 'permission', label: 'Permission', type: 'select', options: ['ALLOW', 'DENY'] },
    { name: 'operation', label: 'Operation', type: 'select', options: words.operations, value: 'READ' },
    { name: 'resource', label: 'On', type: 'select', options: words.resources },
    { name: 'name', label: 'Name', required: true, hint: '* for all; kafka-cluster for the cluster' },
    { name: 'pattern', label: 'Names', type: 'select', options: [['LITERAL', 'this name'], ['PREFIXED', 'names that begin so']] },
    { name: 'host', label: 'From address', value: '*', required: true },
  ], 'Add', (given) => act('acl/create', given))
}

function removeAcl(row) {
  dialog('Remove an ACL', [], 'Remove', () => act('acl/delete', row), {
    danger: true,
    intro: el('p', {}, `${row.permission} ${row.principal} ${row.operation} on ${row.resource} ${row.name} (${row.pattern}) from ${row.host}`),
  })
}

function userForm(words, name = '') {
  dialog(name ? `New password of ${name}` : 'Add a user', [
    { name: 'user', label: 'User', value: name, required: true },
    { name: 'mechanism', label: 'Mechanism', type: 'select', options: words.mechanisms, value: 'SCRAM-SHA-512' },
    { name: 'password', label: 'Password', type: 'password', required: true, hint: '8 characters or more; brokers do not store it' },
  ], 'Save', (given) => act('user/set', given))
}

export async function security(context) {
  const found = await ask('security', { search: context.query.search ?? '', first: context.query.first ?? 0 })
  const may = found.may_alter
  return [
    heading([], 'Security', search(context, 'find a principal or a name')), notes(found.problems),
    panel(null, el('div', { class: 'heading' }, el('h2', {}, 'Access control lists'), may && !found.no_acls ? button('add-acl', 'Add ACL', () => aclForm(found.words), 'main') : null),
      table([
        ['principal', (row) => row.principal, 'long'],
        ['permission', (row) => tone(row.permission === 'ALLOW' ? 'good' : 'bad', row.permission)],
        ['operation', (row) => row.operation], ['on', (row) => row.resource],
        ['name', (row) => (row.pattern === 'PREFIXED' ? `${row.name}…` : row.name), 'long'], ['from', (row) => row.host, 'text'],
        ['', (row) => (may ? button(`remove-${Object.values(row).join('-')}`, 'remove', () => removeAcl(row), 'small') : '')],
      ], found.acls, found.no_acls || 'No ACLs.', 'ACLs'), found.no_acls ? null : pager(context, found)),
    panel(null, el('div', { class: 'heading' }, el('h2', {}, 'SCRAM users'), may ? button('add-user', 'Add user', () => userForm(found.words), 'main') : null),
      table([
        ['user', (row) => row.user, 'long'], ['mechanisms', (row) => row.mechanisms.join(', ')],
        ['', (row) => (may ? [button(`password-${row.user}`, 'password', () => userForm(found.words, row.user), 'small'), ' ',
          ...row.mechanisms.map((mechanism) => button(`remove-${row.user}-${mechanism}`, `remove ${mechanism}`, () => deletion('user', row.user, 'user', 'user/delete', `${row.user} cannot log in with ${mechanism} any more.`, { mechanism }), 'small'))] : '')],
      ], found.users, found.no_users || 'No users.', 'Users')),
  ]
}
